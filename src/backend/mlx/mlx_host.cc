/* mlx_host.cc - a primitive of MLX's graph that calls C. */
#include "backend/mlx/mlx_host.h"

#include <mlx/backend/cpu/encoder.h>
#include <mlx/primitives.h>

namespace {

class host_step : public mx::Primitive {
  public:
    host_step(mx::Stream s, kk_mlx_step run) : mx::Primitive(s), run_(std::move(run)) {}

    void eval_cpu(const std::vector<mx::array> &inputs, std::vector<mx::array> &outputs) override {
        std::vector<const void *> in;
        std::vector<void *> out;
        for (mx::array &o : outputs) {
            if (kk_fault_point()) throw std::bad_alloc();
            o.set_data(mx::allocator::malloc(o.nbytes()));
            out.push_back(o.data<uint8_t>());
            if (o.nbytes() && !out.back()) throw std::bad_alloc();
        }
        /* MLX keeps the inputs until what was dispatched is done. */
        for (const mx::array &i : inputs) in.push_back(i.data<uint8_t>());
        mx::cpu::get_command_encoder(stream()).dispatch(
            [run = run_, in = std::move(in), out = std::move(out)] { run(in, out); });
    }

    void eval_gpu(const std::vector<mx::array> &, std::vector<mx::array> &) override {
        throw std::runtime_error("a step in C runs on the CPU alone");
    }

    const char *name() const override { return "KakeyaHostStep"; }

  private:
    kk_mlx_step run_;
};

} // namespace

std::vector<mx::array> kk_mlx_host(kk_dev *dev, const std::vector<mx::array> &in,
                                   const std::vector<kk_mlx_out> &out, kk_mlx_step step) {
    std::vector<mx::array> rows;
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> types;
    for (const mx::array &a : in) rows.push_back(mx::contiguous(a, false, dev->stream));
    for (const kk_mlx_out &o : out) {
        shapes.push_back(o.shape);
        types.push_back(o.type);
    }
    return mx::array::make_arrays(std::move(shapes), types,
                                  std::make_shared<host_step>(dev->host_stream, std::move(step)),
                                  rows);
}

std::vector<mx::array> kk_mlx_on_pages(kk_dev *dev, std::vector<mx::array> in,
                                       std::vector<kk_mlx_out> out, kk_mlx_step step) {
    if (dev->pages_done) in.push_back(*dev->pages_done);
    out.push_back({{1}, mx::int32});
    std::vector<mx::array> made = kk_mlx_host(dev, in, out, std::move(step));
    dev->pages_done = made.back();
    made.pop_back();
    return made;
}
