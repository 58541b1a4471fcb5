/* mlx_streams.cc - streams, and what of MLX may not be called from two threads at once.
 *
 * Two engines compute beside each other, and MLX has one table of streams and one of encoders for
 * all of a process, which it grows without a lock when a stream is made or first used.  So making
 * a stream, and handing a graph to MLX, are done under a lock of this module; the computing that
 * follows is not.  What a program does with MLX besides is outside it.
 *
 * MLX keeps the thread of a stream until the process ends.  So streams of devices that were closed
 * serve those that are opened next: there are no more threads than devices were open at once. */
#include <mutex>

#include "backend/mlx/mlx_device.h"

namespace {

std::mutex lock;                                     /* guards what follows, and MLX's tables */
std::vector<std::pair<mx::Stream, mx::Stream>> idle; /* pairs of closed devices */

} // namespace

std::pair<mx::Stream, mx::Stream> kk_mlx_streams_take(bool gpu) {
    const std::lock_guard<std::mutex> held(lock);
    const mx::Device::DeviceType type = gpu ? mx::Device::gpu : mx::Device::cpu;
    for (auto at = idle.begin(); at != idle.end(); ++at) {
        if (at->first.device != type) continue;
        const auto pair = *at;
        idle.erase(at);
        return pair;
    }
    idle.reserve(idle.size() + 1); /* giving them back allocates nothing */
    const mx::Stream host = mx::new_thread_unsafe_stream(mx::Device(mx::Device::cpu));
    return {gpu ? mx::new_thread_unsafe_stream(mx::Device(mx::Device::gpu)) : host, host};
}

void kk_mlx_streams_give(const std::pair<mx::Stream, mx::Stream> &streams) {
    const std::lock_guard<std::mutex> held(lock);
    try {
        idle.push_back(streams);
    } catch (...) { /* they are left behind */
    }
}

void kk_mlx_begin(std::vector<mx::array> all) {
    const std::lock_guard<std::mutex> held(lock);
    mx::async_eval(std::move(all));
}

void kk_mlx_compute(std::vector<mx::array> all) {
    kk_mlx_begin(all);
    for (mx::array &a : all) a.wait();
}
