"""Kernel files in the form of each torch generation, written by hand, and their rows.

A row is what torch's own definitions (torch/_inductor/metrics.py) give, worked out by hand.
"""

from __future__ import annotations

from typing import NamedTuple

COLUMNS = (
    "model_name,kernel_name,kernel_path,kernel_category,size_hints,reduction_hint,line_of_code,"
    "num_load,num_store,num_for_loop,num_atomic_add,num_args,xnumel,ynumel,rnumel,"
    "kernel_args_num_gb"
)

IMPORTS_2_3 = """
import triton
import triton.language as tl
from triton.compiler.compiler import AttrsDescriptor

from torch._inductor import triton_helpers, triton_heuristics
from torch._inductor.ir import ReductionHint, TileHint
from torch._inductor.triton_helpers import libdevice, math as tl_math
"""
IMPORTS_2_6 = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
"""
IMPORTS_2_13 = IMPORTS_2_6 + "triton_helpers.set_driver_to_gpu()\n"
# A kernel file has these when it has a harness.
IMPORTS_OF_HARNESS = """
from torch._dynamo.testing import rand_strided
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
import torch
"""

HARNESS = """


def get_args():
    arg_0 = rand_strided((96, 40), (40, 1), device='cuda:0', dtype=torch.float32)
    arg_1 = rand_strided((96, 40), (40, 1), device='cuda:0', dtype=torch.float32)
    return arg_0, arg_1,


def call(args):
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        stream0 = get_raw_stream(0)
        {function}.run(*args, stream=stream0)


def benchmark_all_configs(args):
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        return {function}.benchmark_all_configs(*args)


if __name__ == '__main__':
    from triton.testing import do_bench

    args = get_args()
    ms = do_bench(lambda: call(args), rep=40)
    num_gb = {num_gb}
    gb_per_s = num_gb / (ms / 1e3)
    print(f"{{ms:.3f}}ms    {{num_gb:.3f}}GB    {{gb_per_s:.2f}}GB/s")
"""

POINTWISE = """\
    xnumel = 3840
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = libdevice.tanh(tmp0)
    tl.store(out_ptr0 + (x0), tmp1, xmask)
"""
TILED = """\
    ynumel = 96
    xnumel = 40
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[None, :]
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    tmp0 = tl.load(in_ptr0 + (yindex + 96*xindex), None)
    tl.store(out_ptr0 + (xindex + 40*yindex), tmp0, None)
"""
REDUCTION = """\
    xnumel = 96
    {numel} = 5000
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    _tmp2 = tl.full([XBLOCK, RBLOCK], 0, tl.float32)
    for roffset in range(0, {numel}, RBLOCK):
        rindex = roffset + tl.arange(0, RBLOCK)[None, :]
        tmp0 = tl.load(in_ptr0 + (rindex + (5000*xindex)), None, other=0.0)
        _tmp2 = _tmp2 + tmp0
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (xindex), tmp2, None)
    tl.store(out_ptr1 + (xindex), tmp2 / 5000.0, None)
"""
PERSISTENT = """\
    xnumel = 96
    r0_numel = 40
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    rindex = tl.arange(0, R0_BLOCK)[None, :]
    tmp0 = tl.load(in_ptr0 + (rindex), rindex < rnumel, other=0.0)
    tl.store(out_ptr0 + (0), tl.sum(tmp0, 1)[:, None], None)
"""
PERSISTENT_2D = """\
    xnumel = 12
    r0_numel = 48
    r1_numel = 7
    rnumel = r0_numel*r1_numel
    r0_index = tl.arange(0, R0_BLOCK)[None, :, None]
    r1_index = tl.arange(0, R1_BLOCK)[None, None, :]
    tmp0 = tl.load(in_ptr0 + (r1_index + 7*r0_index), None)
    tl.store(out_ptr0 + (0), tl.sum(tmp0, 1), None)
"""
SPLIT_SCAN = """\
    xnumel = 3
    r0_numel = 70001
    rnumel = r0_numel
    rindex = tl.program_id(0) * R0_BLOCK + tl.arange(0, R0_BLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (rindex), rindex < rnumel, other=0.0)
    tmp1 = triton_helpers.exclusive_scan_decoupled_lookback(
        ws_ptr,
        tl.reduce(tmp0, 0, _triton_helper_fn_add0),
        DTYPE_PACK=tl.uint64,
    )
    tl.store(out_ptr0 + (rindex), tmp1, rindex < rnumel)
"""
# A template has comments and blank lines of its own, at the start of a line too.
TEMPLATE = """\
    BLOCK_K : tl.constexpr = 32
    A = arg_A

    M = 96
# rows first
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, M, BLOCK_K):
        a = tl.load(A + k)
        b = tl.load(arg_B + k)
        acc += tl.dot(a, b)
        \n
    # inductor generates a suffix
    tl.store(out_ptr0 + (idx), acc, mask)
    # the end
  # not of the body
"""
DYNAMIC = """\
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (xindex % ks0), xindex < xnumel)
    tl.store(out_ptr0 + (xindex), tmp0, xindex < xnumel)
"""
DYNAMIC_REDUCTION = """\
    xnumel = 12
    r0_numel = 48
    rnumel = r0_numel*r1_numel
    tmp0 = tl.load(in_ptr0 + (tl.arange(0, R0_BLOCK)), None)
    tl.store(out_ptr0 + (0), tmp0, None)
"""
ATOMIC = """\
    xnumel = 512
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (xindex), None)
    tmp1 = tl.load(in_ptr1 + (xindex), None)
    tl.device_assert((0 <= tmp0) & (tmp0 < 9), "index out of bounds: 0 <= tmp0 < 9")
    tl.atomic_add(out_ptr0 + (tmp0), tmp1, None)
    tl.atomic_add(out_ptr0 + (tmp0 + 9), tmp1, None, sem='relaxed')
"""
FOREACH = """\
    pid = tl.program_id(0)
    if pid < 4:
        xnumel = 4000
        tl.store(out_ptr0 + (pid), tl.load(in_ptr0 + (pid), None), None)
    else:
        pass
"""
HELPER = """
@triton.jit
def _triton_helper_fn_add0(arg0_0, arg1_0):
    return arg0_0 + arg1_0
"""


def kernel_file(
    decorator: str,
    body: str,
    *,
    name: str,
    arguments: str = "in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr",
    num_gb: str = "0.0123",
    imports: str = IMPORTS_2_13,
    function: str = "",
    harness: bool = True,
    before: str = "",
) -> str:
    """Put a kernel file together: `decorator` is its category and first arguments."""
    category, _, hints = decorator.partition("(")
    meta = f"'mutated_arg_names': [], 'kernel_num_gb': {num_gb}, 'kernel_flop': 0"
    function = function or name
    return (
        (imports + IMPORTS_OF_HARNESS if harness else imports)
        + f"{before}\n@triton_heuristics.{category}(\n    {hints}\n    filename=__file__,\n"
        "    triton_meta={'signature': {'in_ptr0': '*fp32'}, 'constants': {}},\n"
        f"    inductor_meta={{'grid_type': 'Grid1D', 'kernel_name': '{name}', {meta}}}\n)\n"
        f"@triton.jit\ndef {function}({arguments}):\n{body}"
        + (HARNESS.format(function=function, num_gb=num_gb) if harness else "")
    )


class Example(NamedTuple):
    """A kernel file and the cells of its row that follow kernel_path, None where it has none."""

    source: str
    name: str = ""
    cells: str | None = None


def wrapper_module(*sources: str) -> str:
    """Quote kernels as a compiled graph's module does."""
    kernels = "".join(
        f"\ntriton_{n} = async_compile.triton('triton_{n}', '''{source}''', device_str='cuda')\n"
        for n, source in enumerate(sources)
    )
    return (
        "import torch\nfrom torch._inductor.async_compile import AsyncCompile\n"
        f"async_compile = AsyncCompile()\n{kernels}\nasync_compile.wait(globals())\n"
        '\ndef call(args):\n    return ()\n\n\nif __name__ == "__main__":\n    call([])\n'
    )


RED_2_3 = (
    "in_ptr0, out_ptr0, out_ptr1, xnumel, rnumel, XBLOCK : tl.constexpr, RBLOCK : tl.constexpr"
)
RED_2_6 = "in_ptr0, out_ptr0, out_ptr1, xnumel, r0_numel, XBLOCK : tl.constexpr"
INNER_2_6 = "size_hints={'x': 128, 'r0_': 64},\n    reduction_hint=ReductionHint.INNER,"
R1_HINTS = "size_hints={'x': 16, 'r0_': 64, 'r1_': 8},\n    reduction_hint=ReductionHint.DEFAULT,"

EXAMPLES = {
    "pointwise_2_3": Example(
        kernel_file(
            "pointwise(size_hints=[4096], ",
            POINTWISE,
            name="triton_poi_fused_tanh_4",
            imports=IMPORTS_2_3,
            num_gb="3.072e-05",
        ),
        "triton_poi_fused_tanh_4",
        # torch 2.3 itself writes 3.072000: it misreads the exponent.
        "pointwise,[4096],,9,1,1,0,0,4,3840,,,0.00003072",
    ),
    "tiled_2_3": Example(
        kernel_file(
            "pointwise(size_hints=[128, 64], tile_hint=TileHint.SQUARE,",
            TILED,
            name="triton_poi_fused_clone_1",
            arguments="in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr",
            imports=IMPORTS_2_3,
            num_gb="1.5",
        ),
        "triton_poi_fused_clone_1",
        'pointwise,"[128, 64]",,9,1,1,0,0,5,40,96,,1.500000',
    ),
    "reduction_2_3": Example(
        kernel_file(
            "reduction(size_hints=[128, 8192],\n    reduction_hint=ReductionHint.OUTER,",
            REDUCTION.format(numel="rnumel"),
            name="triton_red_fused_sum_mean_0",
            arguments=RED_2_3,
            imports=IMPORTS_2_3,
            num_gb="0.00192076800123",
        ),
        "triton_red_fused_sum_mean_0",
        'reduction,"[128, 8192]",OUTER,13,1,2,1,0,7,96,,5000,0.001921',
    ),
    "reduction_2_6": Example(
        kernel_file(
            "reduction(size_hints={'x': 128, 'r0_': 8192},\n"
            "    reduction_hint=ReductionHint.INNER,",
            REDUCTION.format(numel="r0_numel"),
            name="triton_red_fused_sum_mean_0",
            arguments=RED_2_6,
            imports=IMPORTS_2_6,
            num_gb="12",
        ),
        "triton_red_fused_sum_mean_0",
        "reduction,\"{'x': 128, 'r0_': 8192}\",INNER,13,1,2,1,0,6,96,,5000,12.000000",
    ),
    "persistent_2_6": Example(
        kernel_file(
            f"persistent_reduction({INNER_2_6}",
            PERSISTENT,
            name="triton_per_fused_sum_2",
            imports=IMPORTS_2_6,
        ),
        "triton_per_fused_sum_2",
        "persistent_reduction,\"{'x': 128, 'r0_': 64}\",INNER,8,1,1,0,0,4,96,,40,0.012300",
    ),
    "persistent_2d_2_13": Example(
        kernel_file(
            f"persistent_reduction({R1_HINTS}",
            PERSISTENT_2D,
            name="triton_per_fused_sum_7",
            num_gb="1e-09",
        ),
        "triton_per_fused_sum_7",
        "persistent_reduction,\"{'x': 16, 'r0_': 64, 'r1_': 8}\",DEFAULT,9,1,1,0,0,4,12,,336,"
        "0.000000001",
    ),
    "split_scan_2_13": Example(
        kernel_file(
            "split_scan(size_hints={'x': 4, 'r0_': 131072},\n"
            "    reduction_hint=ReductionHint.INNER,",
            SPLIT_SCAN,
            name="triton_spl_fused_cumsum_0",
            before=HELPER,
        ),
        "triton_spl_fused_cumsum_0",
        "split_scan,\"{'x': 4, 'r0_': 131072}\",,12,1,1,0,0,4,3,,70001,0.012300",
    ),
    "cooperative_2_13": Example(
        kernel_file(
            f"cooperative_reduction({INNER_2_6}", PERSISTENT, name="triton_unk_fused_sum_0"
        ),
        "triton_unk_fused_sum_0",
        "unknown,\"{'x': 128, 'r0_': 64}\",,8,1,1,0,0,4,96,,40,0.012300",
    ),
    "template_2_13": Example(
        kernel_file(
            "template(\nnum_stages=2,",
            TEMPLATE,
            name="triton_tem_fused_mm_3",
            arguments="arg_A, arg_B, out_ptr0",
        ),
        "triton_tem_fused_mm_3",
        "template,,,16,2,1,1,0,3,,,,0.012300",
    ),
    "plain_name_2_13": Example(
        kernel_file(
            "pointwise(size_hints={'x': 4096}, ",
            POINTWISE,
            name="triton_poi_fused_tanh_9",
            function="triton_",
        ),
        "triton_poi_fused_tanh_9",
        "pointwise,{'x': 4096},,9,1,1,0,0,4,3840,,,0.012300",
    ),
    "dynamic_2_13": Example(
        kernel_file(
            "pointwise(size_hints={'x': 8192}, ",
            DYNAMIC,
            name="triton_poi_fused_repeat_0",
            arguments="in_ptr0, out_ptr0, ks0, xnumel, XBLOCK : tl.constexpr",
        ),
        "triton_poi_fused_repeat_0",
        "pointwise,{'x': 8192},,5,1,1,0,0,5,,,,0.012300",
    ),
    "dynamic_reduction_2_13": Example(
        kernel_file(
            f"reduction({R1_HINTS}",
            DYNAMIC_REDUCTION,
            name="triton_red_fused_sum_5",
            arguments="in_ptr0, out_ptr0, xnumel, r0_numel, r1_numel, R0_BLOCK : tl.constexpr",
        ),
        "triton_red_fused_sum_5",
        "reduction,\"{'x': 16, 'r0_': 64, 'r1_': 8}\",DEFAULT,6,1,1,0,0,6,12,,,0.012300",
    ),
    "atomic_2_13": Example(
        kernel_file(
            "pointwise(size_hints={'x': 512}, ",
            ATOMIC,
            name="triton_poi_fused_index_put_1",
            arguments="in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr",
        ),
        "triton_poi_fused_index_put_1",
        "pointwise,{'x': 512},,8,2,0,0,2,5,512,,,0.012300",
    ),
}

NO_HARNESS = kernel_file(
    "pointwise(size_hints={'x': 4096}, ", POINTWISE, name="triton_poi_fused_tanh_6", harness=False
)
FOREACH_KERNEL = kernel_file(
    "foreach(num_warps=8,", FOREACH, name="triton_for_fused_0", harness=False
)
# A fusion that torch only benchmarked: it has a harness, and no name.
CANDIDATE = kernel_file(
    "pointwise(size_hints={'x': 4096}, ",
    POINTWISE,
    name="Placeholder.DESCRIPTIVE_NAME",
    function="triton_",
)
USER_KERNEL = kernel_file(
    "user_autotune(configs=[],",
    "    off = tl.program_id(0)\n    tl.store(out + off, tl.load(x + off))\n",
    name="halve_kernel_0",
    function="halve_kernel",
    arguments="x, out",
    harness=False,
)
QUOTED = f"'''Kernels for a test.'''\nSOURCE = '''{EXAMPLES['pointwise_2_3'].source}'''\n"

OTHERS = {
    "candidate": CANDIDATE,
    "foreach": FOREACH_KERNEL,
    "no_harness": NO_HARNESS,
    "other": "import os\n",
    "quoted": QUOTED,
    "user": USER_KERNEL,
    "wrapper": wrapper_module(EXAMPLES["pointwise_2_3"].source, EXAMPLES["template_2_13"].source),
    "wrapper_cpu": wrapper_module(),
}
