#!/usr/bin/env python3
"""Rates of kernels on one GPU, as JSON: python3 benches/gpu/rates.py OUT.json (PyTorch with CUDA; a minute or two).

results/own/one-h100-rates.json is what its first form gave on an H100; results/own/one-h100.md says what follows.
Products and attention are in TFLOP/s (attention: the causal half), memory in TB/s, and what element-wise kernels take in
bytes an element at 2.75 TB/s, as the constants of a profile count them.
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch._functorch.config

torch._functorch.config.donated_buffer = False  # backward passes are repeated
BANDWIDTH = 2.75e12
results = {}


def put(name, **values):
    results.setdefault(name, []).append(values)
    print(name, values, flush=True)


def seconds(call, budget=0.2):
    """The median of as many calls as fit into so many seconds."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    calls = max(5, min(2000, int(budget / max(begin.elapsed_time(end) / 1e3, 1e-6))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:]))
    return times[len(times) // 2]


def normal(*shape, dtype=torch.bfloat16, grad=False):
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def sustained(m, n, k, length=4.0):
    """Products one after the other for so many seconds: the clock settles under the limit of power."""
    a, b, c = normal(m, k), normal(n, k), normal(m, n)
    flops = 2 * m * n * k
    calls, rates, start = max(1, int(0.25 * 600e12 / flops)), [], time.time()
    while time.time() - start < length:
        begin = time.time()
        for _ in range(calls):
            torch.mm(a, b.t(), out=c)
        torch.cuda.synchronize()
        rates.append(round(calls * flops / (time.time() - begin) / 1e12, 1))
    put("gemm_sustained", m=m, n=n, k=k, tflops_by_quarter_second=rates)


SHAPES = {  # inputs and outputs of the layers of Llama 3 and of an expert
    "1b_qkv": (2048, 3072), "1b_q": (2048, 2048), "1b_kv": (2048, 512), "1b_up": (2048, 8192), "1b_down": (8192, 2048),
    "1b_head": (2048, 128256), "3b_q": (3072, 3072), "3b_kv": (3072, 1024), "3b_up": (3072, 8192), "3b_down": (8192, 3072),
    "8b_q": (4096, 4096), "8b_kv": (4096, 1024), "8b_up": (4096, 14336), "8b_down": (14336, 4096),
    "8b_head": (4096, 128256), "70b_q": (8192, 8192), "70b_up": (8192, 28672), "70b_down": (28672, 8192),
    "moe_up": (2048, 768),
}  # fmt: skip


def products():
    for name, (k, n) in SHAPES.items():
        for tokens in (4096, 8192) if "head" in name else (2048, 4096, 8192, 16384):
            x, w, dy = normal(tokens, k), normal(n, k), normal(tokens, n)
            rate = lambda call: round(2 * tokens * k * n / 1e12 / seconds(call, 0.12), 1)
            forward, data, weight = (
                rate(lambda: F.linear(x, w)),
                rate(lambda: dy @ w),
                rate(lambda: dy.t() @ x),
            )
            put("gemm", shape=name, k=k, n=n, tokens=tokens, fwd=forward, dgrad=data, wgrad=weight)


def low_precision():
    for name in ("8b_q", "8b_up", "8b_down", "70b_q", "70b_up", "70b_down", "1b_up"):
        k, n = SHAPES[name]
        for tokens in (4096, 8192, 16384):
            a, b = normal(tokens, k).to(torch.float8_e4m3fn), normal(n, k).to(torch.float8_e4m3fn).t()
            one = torch.ones((), device="cuda")
            rows, columns = torch.ones(tokens, 1, device="cuda"), torch.ones(1, n, device="cuda")

            def rate(left, right, fast):
                call = lambda: torch._scaled_mm(
                    a, b, scale_a=left, scale_b=right, out_dtype=torch.bfloat16, use_fast_accum=fast
                )
                return round(2 * tokens * k * n / 1e12 / seconds(call, 0.12), 1)

            put(
                "fp8", shape=name, k=k, n=n, tokens=tokens, tensorwise=rate(one, one, True),
                tensorwise_slow_accum=rate(one, one, False), rowwise=rate(rows, columns, True),
            )  # fmt: skip


def attention(name, backend, batch, heads, length, width, value_width=None):
    value_width = value_width or width
    q, k = (normal(batch, heads, length, width, grad=True) for _ in range(2))
    v = normal(batch, heads, length, value_width, grad=True)
    flops = batch * heads * length * length * (width + value_width) / 1e12
    about = dict(backend=name, batch=batch, heads=heads, seq=length, d=width, dv=value_width)
    try:
        with sdpa_kernel(backend):
            call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            forward, out = seconds(call), call()
            gradient = torch.randn_like(out)
            backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    except RuntimeError as error:
        put("sdpa", **about, error=str(error)[:200])
        return
    put("sdpa", **about, fwd_tflops=round(flops / forward, 1), bwd_tflops=round(2.5 * flops / backward, 1))


def memory():
    size = 2 << 30
    a = torch.empty(size, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    put("copy", bytes=size, tbps=round(2 * size / seconds(lambda: b.copy_(a)) / 1e12, 3))
    for n in (1 << 24, 1 << 26, 1 << 28):
        x, y = normal(n), normal(n)
        z, wide = torch.empty_like(x), torch.zeros(n, device="cuda")
        for op, each, call in (
            ("add(x,y,out)", 6, lambda: torch.add(x, y, out=z)),
            ("silu", 4, lambda: F.silu(x)),
            ("to_float", 6, lambda: x.float()),
            ("fp32 += bf16", 10, lambda: wide.add_(x)),
        ):
            put("elementwise", op=op, n=n, tbps=round(each * n / seconds(call) / 1e12, 3))


def optimizer():
    weights = [torch.nn.Parameter(normal(1 << 24, dtype=torch.float32)) for _ in range(32)]
    count = sum(weight.numel() for weight in weights)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    for kind in ("fused", "foreach"):
        step = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.1, **{kind: True}).step
        put("adamw", params=count, kind=kind, ps_per_param=seconds(step, 0.3) / count * 1e12)
    clip = lambda: torch.nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
    put("clip_grad_norm", params=count, ps_per_param=seconds(clip, 0.3) / count * 1e12)


class TransformersNorm(torch.nn.Module):
    """RMSNorm as Transformers computes it."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, device="cuda", dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def element_wise(name, kinds, inputs, elements, **about):
    for kind, call in kinds.items():
        out = call(*inputs)
        gradient, leaves = torch.randn_like(out), [x for x in inputs if x.requires_grad]
        forward = seconds(lambda: call(*inputs))
        backward = seconds(lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True))
        each = [round(time * BANDWIDTH / elements, 1) for time in (forward, backward)]
        put(name, kind=kind, **about, fwd_bytes_per_el_at_2p75=each[0], bwd_bytes_per_el_at_2p75=each[1])


def norms_and_activations():
    swiglu = lambda gate, up: F.silu(gate) * up
    for width, tokens in ((2048, 8192), (4096, 8192), (8192, 8192), (4096, 16384)):
        norm = TransformersNorm(width)
        fused = torch.nn.RMSNorm(width, eps=1e-5, device="cuda", dtype=torch.bfloat16)
        kinds = {"hf_eager": norm, "torch_rms_norm": fused, "hf_compiled": torch.compile(norm)}
        element_wise(
            "rmsnorm", kinds, [normal(tokens, width, grad=True)], tokens * width, hidden=width, tokens=tokens
        )
    for width, tokens in ((8192, 8192), (14336, 8192)):
        kinds = {"eager": swiglu, "compiled": torch.compile(swiglu)}
        inputs = [normal(tokens, width, grad=True) for _ in range(2)]
        element_wise("swiglu", kinds, inputs, tokens * width, width=width, tokens=tokens)
    for tokens, vocabulary in ((4096, 128256), (8192, 128256)):
        target = torch.randint(vocabulary, (tokens,), device="cuda")
        kinds = {"eager": lambda logits: F.cross_entropy(logits.float(), target)}
        inputs = [normal(tokens, vocabulary, grad=True)]
        element_wise("cross_entropy", kinds, inputs, tokens * vocabulary, tokens=tokens, vocab=vocabulary)


def launches(count=20000):
    x = normal(8)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        x.add_(1)
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    put("launch", host_us=round(host / count * 1e6, 2))


def main():
    torch.manual_seed(0)
    sustained(8192, 8192, 8192)
    sustained(8192, 28672, 4096)
    products()
    for length, batch in ((2048, 8), (4096, 4), (8192, 2), (16384, 1)):
        for heads, width in ((32, 64), (16, 128)):
            for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
                attention(name, backend, batch, heads, length, width)
    attention("cudnn", SDPBackend.CUDNN_ATTENTION, 2, 16, 4096, 192, 128)
    low_precision()
    memory()
    optimizer()
    norms_and_activations()
    launches()
    with open(sys.argv[1], "w") as out:
        json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()
