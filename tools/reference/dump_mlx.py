"""Dumps small matrices as MLX quantises them, for tests/unit/mlx_folder_test.c.

    pip install mlx==0.32.4 mlx-cpu==0.32.4
    python3 tools/reference/dump_mlx.py tests/data/mlx/golden.safetensors

For every kind of codes and scales (NAME = BITS_GROUP_TYPE): NAME.weight, NAME.scales, NAME.biases
from mx.quantize; NAME.floats from mx.dequantize with the scales and biases widened to float32, so
that nothing is rounded to 16 bits; NAME.y = mx.quantized_matmul of x with the same.
"""

import sys

import mlx.core as mx

ROWS, WIDTH = 2, 64
TYPES = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}


def main(path):
    mx.set_default_device(mx.cpu)
    mx.random.seed(7)
    weights = mx.random.normal((ROWS, WIDTH)) * 0.05
    weights[1, :32] = 0.25  # a group of equal values
    weights[1, 32:] = mx.abs(weights[1, 32:])  # one of a single sign
    out = {"x": mx.random.normal((2, WIDTH))}
    for bits in (4, 8):
        for group in (32, 64):
            for name, dtype in TYPES.items():
                how = {"group_size": group, "bits": bits}
                codes, scales, biases = mx.quantize(weights.astype(dtype), **how)
                wide = (scales.astype(mx.float32), biases.astype(mx.float32))
                key = f"{bits}_{group}_{name}"
                out[f"{key}.weight"] = codes
                out[f"{key}.scales"] = scales
                out[f"{key}.biases"] = biases
                out[f"{key}.floats"] = mx.dequantize(codes, *wide, **how)
                out[f"{key}.y"] = mx.quantized_matmul(out["x"], codes, *wide, **how)
    mx.save_safetensors(path, out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
