"""Cached logs in the layout of each ncu generation, written by hand, with the figures they hold.

Figures are worked out by hand too: the cells of the output as text, or None for a log that must
not count as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The value of the unit and the text of the number, as ncu prints them.
Quantity = tuple[str, str]
# latency, duration, bandwidth as they stand in the output; the last blank without DRAM counters.
Cells = tuple[str, str, str]

BENCHMARK = "0.031ms    0.006GB    193.55GB/s"
DURATION = ("usecond", "8.74")
BANDWIDTH = ("Gbyte/second", "412.09")
CELLS = ("31.0", "8.74", "412.09")


class Layout(NamedTuple):
    """How one generation of ncu lays out a result."""

    wide: bool = False  # columns of 70, 15 and 30, no header row
    dated: bool = False  # the kernel line has a date, and no grid, device or CC
    speed: str = "GPU Speed Of Light Throughput"
    memory_percent: str = "Memory Throughput"
    more_speed: tuple[tuple[str, str, str], ...] = ()
    more_memory: tuple[tuple[str, str, str], ...] = ()
    advice: str = "OPT"


LAYOUTS = {
    "2020": Layout(True, True, "GPU Speed Of Light", "Memory [%]", advice="WRN"),
    "2022": Layout(
        True,
        True,
        "GPU Speed Of Light",
        "Memory [%]",
        (("SOL DRAM", "%", "7.31"),),
        (("L2 Compression Ratio", "", "0"),),
        "WRN",
    ),
    "2022.3": Layout(
        more_speed=(("DRAM Frequency", "cycle/nsecond", "1.59"),),
        more_memory=(("L2 Compression Ratio", "", "0"),),
        advice="WRN",
    ),
    "2024": Layout(
        more_speed=(("DRAM Throughput", "%", "57.48"),),
        more_memory=(("L2 Compression Success Rate", "%", "0"),),
    ),
    "2024.3": Layout(more_speed=(("DRAM Frequency", "Ghz", "5.21"),)),
    "2025": Layout(
        more_speed=(("SM Frequency", "Ghz", "1.69"),),
        more_memory=(
            ("Local Memory Spilling Requests", "", "0"),
            ("Local Memory Spilling Request Overhead", "%", "0"),
            ("L2 Persisting Size", "Mbyte", "9.83"),
        ),
    ),
}


def rule(widths: Sequence[int]) -> str:
    """The line that opens and closes a table."""
    return "    " + " ".join("-" * width for width in widths) + "\n"


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A row: the name on the left, the others on the right."""
    name, unit, value = cells
    return f"    {name:<{widths[0]}} {unit:>{widths[1]}} {value:>{widths[2]}}\n"


def table(title: str, rows: Sequence[tuple[str, str, str]], layout: Layout) -> str:
    """A section with its table; all but the old ones are as narrow as their cells."""
    heading = ("Metric Name", "Metric Unit", "Metric Value")
    if layout.wide:
        widths, head = [70, 15, 30], ""
    else:
        widths = [max(len(row[at]) for row in (heading, *rows)) for at in range(3)]
        head = line(heading, widths) + rule(widths)
    body = "".join(line(row, widths) for row in rows)
    return f"    Section: {title}\n{rule(widths)}{head}{body}{rule(widths)}\n"


def kernel_line(name: str, layout: Layout, chip: str = "8.6") -> str:
    """The line that opens a result."""
    if layout.dated:
        return f"  {name}, 2021-Mar-07 18:22:09, Context 1, Stream 13\n"
    return f"  {name} (96, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC {chip}\n"


def result(
    duration: Quantity = DURATION,
    bandwidth: Quantity | None = BANDWIDTH,
    layout: str = "2024",
    *,
    name: str = "triton_poi_fused_mul_sin_2",
    chip: str = "8.6",
    between: str = "",
    brief: bool = False,
) -> str:
    """One result of --set full, or of its two sections that count if `brief`.

    `between` stands between the kernel line and the first section.
    """
    how = LAYOUTS[layout]
    speed = [
        ("Elapsed Cycles", "cycle", "12,305"),
        (how.memory_percent, "%", "57.48"),
        ("Duration", *duration),
        ("L2 Cache Throughput", "%", "20.66"),
        *how.more_speed,
    ]
    memory = [
        ("Mem Busy", "%", "33.07"),
        ("Max Bandwidth", "%", "57.48"),
        ("L2 Hit Rate", "%", "48.91"),
        *how.more_memory,
    ]
    if bandwidth:
        memory.insert(0, ("Memory Throughput", *bandwidth))
    advice = (
        f"    {how.advice}   This kernel's Memory Throughput is below what the device can do.\n"
        "          Duration and occupancy are discussed in the guide.\n\n"
    )
    if brief:
        return (
            kernel_line(name, how, chip)
            + between
            + table(how.speed, speed[1:], how)
            + table("Memory Workload Analysis", memory, how)
        )
    return (
        kernel_line(name, how, chip)
        + between
        + table(how.speed, speed, how)
        + advice
        + "    Section: GPU Speed Of Light Roofline Chart\n"
        + advice
        + table("Memory Workload Analysis", memory, how)
        + "    Section: Memory Workload Analysis Chart\n"
        + advice
        + table("Memory Workload Analysis Tables", [("Bank Conflicts", "%", "0")], how)
        + table("Occupancy", [("Achieved Occupancy", "%", "71.15")], how)
    )


def quick_result(
    duration: Quantity = ("us", "8.74"),
    bandwidth: Quantity | None = ("Gbyte/s", "412.09"),
    layout: str = "2025",
    name: str = "triton_poi_fused_mul_sin_2",
) -> str:
    """One result of --metrics."""
    rows = [("gpu__time_duration.sum", *duration)]
    if bandwidth:
        rows.insert(0, ("dram__bytes.sum.per_second", *bandwidth))
    how = LAYOUTS[layout]
    return kernel_line(name, how) + table("Command line profiler metrics", rows, how)


def log(
    *results: str,
    benchmark: str = BENCHMARK,
    names: Sequence[str] = ("triton_poi_fused_mul_sin_2",),
    before: str = "",
    after: str = "",
) -> str:
    """What ncu and the application print: `before` the benchmark line and `after` it."""
    profiling = "".join(
        f'==PROF== Profiling "{name}" - {number}: 0%....50%....100% - 36 passes\n'
        for number, name in enumerate(names)
    )
    return (
        "==PROF== Connected to process 5151 (/usr/bin/python3.10)\n"
        + profiling
        + before
        + (benchmark + "\n" if benchmark else "")
        + after
        + "==PROF== Disconnected from process 5151\n"
        + "[5151] python3.10@127.0.0.1\n"
        + "".join(results or (result(),))
    )


# --- numbers -----------------------------------------------------------------------------------

# What groups thousands and what marks decimals. All the spaces that locales of French were seen
# with, and an apostrophe of each kind. \udca0: the no-break space of Latin-1, which is no UTF-8.
SEPARATORS = {
    "C": ("", "."),
    "en": (",", "."),
    "de": (".", ","),
    "fr": (" ", ","),
    "fr, no-break space": ("\u00a0", ","),
    "fr, narrow no-break space": ("\u202f", ","),
    "fr, thin space": ("\u2009", ","),
    "fr, Latin-1": ("\udca0", ","),
    "ch": ("'", "."),
    "ch, typographic": ("’", "."),
    "es, groups left out": ("", ","),
}
LOCALES = (*SEPARATORS, "in")


def lakhs(whole: str) -> str:
    """Digits grouped as in India: 12,34,567."""
    head, tail = whole[:-3], whole[-3:]
    pairs = [head[max(end - 2, 0) : end] for end in range(len(head), 0, -2)]
    return ",".join([*reversed(pairs), tail])


def number(whole: str, decimals: str, locale: str) -> str:
    """A number as ncu prints it: integer, or with two decimals."""
    if locale == "in":
        return lakhs(whole) + (f".{decimals}" if decimals else "")
    group, point = SEPARATORS[locale]
    grouped = f"{int(whole):,}".replace(",", group)
    return grouped + (f"{point}{decimals}" if decimals else "")


def encode(text: str) -> bytes:
    """A log's bytes; a lone \\udca0 is the byte of Latin-1."""
    return text.encode("utf-8", "surrogateescape")


# --- logs and what they hold --------------------------------------------------------------------


class Example(NamedTuple):
    """A log, and the first three figures in the output; None where it must not count as a log."""

    log: bytes
    cells: Cells | None


def example(text: str, cells: Cells | None = CELLS) -> Example:
    """An example from a text."""
    return Example(encode(text), cells)


def of_units() -> dict[str, Example]:
    """Each unit of time and of bandwidth, in the spelling of both generations."""
    times = {
        ("nsecond", "874"): "0.874",
        ("nsecond", "8740.50"): "8.7405",
        ("ns", "16448"): "16.448",
        ("usecond", "57.06"): "57.06",
        ("us", "6.10"): "6.1",
        ("msecond", "4.35"): "4350.0",
        ("ms", "56.87"): "56870.0",
        ("second", "2.07"): "2070000.0",
        ("s", "1"): "1000000.0",
    }
    rates = {
        ("byte/second", "1183624411.07"): "1.18362441107",
        ("byte/s", "960"): "9.6e-07",
        ("Kbyte/second", "512.25"): "0.00051225",
        ("Kbyte/s", "3"): "3e-06",
        ("Mbyte/second", "87.04"): "0.08704",
        ("Mbyte/s", "999.99"): "0.99999",
        ("Gbyte/second", "1.17"): "1.17",
        ("Gbyte/s", "640.00"): "640.0",
        ("Tbyte/second", "1.30"): "1300.0",
        ("Tbyte/s", "3.01"): "3010.0",
        ("Tbyte/s", "0"): "0.0",
    }
    found = {}
    for time, duration in times.items():
        layout = "2025" if len(time[0]) < 3 else "2024"
        name = "time " + " ".join(time)
        found[name] = example(log(result(time, layout=layout)), ("31.0", duration, "412.09"))
    for rate, bandwidth in rates.items():
        layout = "2025" if rate[0].endswith("/s") else "2024"
        name = "bandwidth " + " ".join(rate)
        found[name] = example(
            log(result(bandwidth=rate, layout=layout)), ("31.0", "8.74", bandwidth)
        )
    for unit in ("fsecond", "minute", "Usecond", "%", "cycle", "byte/second"):
        found[f"no time {unit}"] = example(log(result((unit, "8.74"))), None)
    for unit in ("%", "byte", "Gbit/second", "gbyte/second", "Zbyte/s", "Gbyte", "usecond"):
        found[f"no bandwidth {unit}"] = example(log(result(bandwidth=(unit, "412.09"))), None)
    return found


def of_locales() -> dict[str, Example]:
    """Numbers in each locale, in wide columns and in those that are one space apart."""
    found = {}
    for locale in LOCALES:
        for layout in ("2022", "2024"):
            duration = ("nsecond", number("1308412", "", locale))
            bandwidth = ("byte/second", number("1407215632811", "37", locale))
            text = log(result(duration, bandwidth, layout))
            found[f"locale {locale}, {layout}"] = example(
                text, ("31.0", "1308.412", "1407.21563281137")
            )
            duration = ("nsecond", number("16448", "", locale))
            bandwidth = ("byte/second", number("960", "", locale))
            text = log(result(duration, bandwidth, layout))
            found[f"locale {locale}, {layout}, small"] = example(
                text, ("31.0", "16.448", "9.6e-07")
            )
        text = log(
            result(
                ("msecond", number("1", "35", locale)),
                ("Gbyte/second", number("758", "59", locale)),
            )
        )
        found[f"locale {locale}, scaled"] = example(text, ("31.0", "1350.0", "758.59"))
    return found


def of_bad_numbers() -> dict[str, Example]:
    """What stands where a number should, and is none."""
    texts = (
        "(!) nan,nan,inf,(!) n/a,n/a,-1.50,1e3,1.2.3,1..5,.50,5.,1_000,0x10,1.234.56,12a,8.74us"
    ).split(",")
    texts += ["8.74 8.74", "12 34", "1,2345", "1,23,45", "1,000,00", "0,000,001.50", "1.000,000,5"]
    texts += ["8" * 400, "\u0661\u0662", "8 .74", "1,234 567"]
    found = {}
    for text in texts:
        found[f"duration {text[:20]!r}"] = example(log(result(("usecond", text))), None)
        found[f"bandwidth {text[:20]!r}"] = example(
            log(result(bandwidth=("Gbyte/second", text))), None
        )
    return found


NVTX = """\
    NVTX Push/Pop Stack for Thread 5151:
     <default domain>
        <0,step, Context 2, Duration us 1.00>
            RGB: 0xff00ff
            REGISTERED: Section: Memory Workload Analysis

"""
CALL_STACK = """\
    Call Stack:
          /usr/lib/python3.10/threading.py:973
          0x7f00aa [libcuda.so.1] Duration usecond 1.00
          ----
"""
WARNING = (
    "    Warning: Data collection happened without fixed GPU frequencies. "
    "Profiling results may be inconsistent.\n"
)
# An application that talks like ncu.
CHATTER = """\
Memory throughput = 3 GB/s
    Duration                      usecond         1.11
    Memory Throughput           Gbyte/second        2.22
  triton_poi_fused_old_0 (1, 1, 1)x(1, 1, 1), Context 1, Stream 7, Device 0, CC 7.0
    Section: GPU Speed Of Light Throughput
    -------- ------- ----
    Duration usecond 3.33
    -------- ------- ----
    Section: Memory Workload Analysis
    ----------------- ------------ ----
    Memory Throughput Gbyte/second 4.44
    ----------------- ------------ ----
0.044ms of something else, at 5.55GB/s
# ms GB GB/s
"""
AT_NATIVE = (
    "void at::native::<unnamed>::distribution_elementwise_grid_stride_kernel<float, (int)4, "
    "std::array<char *, (unsigned long)1>>(long, at::PhiloxCudaState, T3, T4)"
)


def of_surroundings() -> dict[str, Example]:
    """What stands around the tables: other results, ncu's own lines, the application's."""
    other = result(("usecond", "1.07"), ("Gbyte/second", "99.10"), name=AT_NATIVE)
    third = result(("usecond", "3.21"), ("Gbyte/second", "9.90"), name="triton_red_fused_sum_1")
    both = (AT_NATIVE[:29] + "...", "triton_poi_fused_mul_sin_2")
    first = ("31.0", "1.07", "99.1")
    glued = BENCHMARK.join(
        ('==PROF== Profiling "triton_poi" - 0: 0%....50%....100%', "\n - 36 passes\n")
    )
    split = (
        '==PROF== Profiling "triton_poi" - 0: 0%..\n'
        "==WARNING== Launching the workload is taking more time than expected.\n"
        "..50%....100% - 36 passes\n"
    )
    stderr = (
        "==STDERR== Traceback (most recent call last):\n==STDERR== 0.099ms    0.001GB    9.99GB/s\n"
        "==STDERR==   triton_poi (1, 1, 1)x(1, 1, 1), Context 1, Stream 7, Device 0, CC 7.0\n"
    )
    label = "kernel-17/triton_poi_fused_mul_sin_2"
    whole = log()
    no_memory = result().partition("    Section: Memory Workload Analysis\n")[0]
    no_speed = result().replace("GPU Speed Of Light Throughput", "GPU Speed")
    texts = {
        "the Triton kernel second": log(other, result(), names=both),
        "the Triton kernel second and third": log(other, result(), third, names=both),
        "the Triton kernel first": log(result(), other),
        "benchmark line last": result() + BENCHMARK + "\n",
        "kernel line at the margin": whole.replace("  triton_poi", "triton_poi"),
        "NVTX block": log(result(between=NVTX)),
        "NVTX block, call stack, warning": log(result(between=NVTX + CALL_STACK + WARNING)),
        "warning, 2022": log(result(layout="2022", between=WARNING)),
        "NVTX label": log(result(name=label)),
        "application that talks like ncu": log(before=CHATTER, after=CHATTER),
        "application that talks like ncu, 2020": log(result(layout="2020"), before=CHATTER),
        "benchmark line glued to progress": log(benchmark="", before=glued),
        "warning within progress": log(before=split),
        "stderr behind its mark": stderr + whole,
        "progress on stderr": f"==STDERR== tuning: 100%{BENCHMARK.replace('31', '99')}\n{whole}",
        "spaces at the ends of lines": whole.replace("\n", "   \n"),
        "benchmark line with spaces": whole.replace("GB/s\n", "GB/s  \n"),
        "two benchmark lines": log(after="0.777ms    0.006GB    193.55GB/s\n"),
        "benchmark line of a tiny kernel": log(benchmark="0.031ms    0.000GB    0.00GB/s"),
        "CRLF": whole.replace("\n", "\r\n"),
    }
    found = {name: example(text) for name, text in texts.items()}
    found.update(
        {
            "no Triton kernel": example(log(other, names=both[:1]), first),
            "no Triton kernel of two": example(
                log(other, result(name="gemm"), names=(both[0], "gemm")), first
            ),
            "no bandwidth row": example(log(result(bandwidth=None)), ("31.0", "8.74", "")),
            "no bandwidth row, 2025": example(
                log(result(("us", "8.74"), None, "2025", chip="8.7")), ("31.0", "8.74", "")
            ),
            "no memory section": example(log(no_memory), None),
            "no speed section": example(log(no_speed), None),
            "failed launch": example(
                log(
                    result(("nsecond", "(!) nan"), ("byte/second", "(!) nan")).replace(
                        "57.48", "(!) nan"
                    )
                ),
                None,
            ),
            "only the bandwidth lost": example(
                log(result(bandwidth=("Gbyte/second", "(!) n/a"))), None
            ),
            "no benchmark line": example(log(benchmark=""), None),
            "benchmark line without bandwidth": example(log(benchmark="0.031ms    0.006GB"), None),
            "benchmark line, not a number": example(
                log(benchmark="nanms    0.006GB    193.55GB/s"), None
            ),
            "empty": example("", None),
            "only a benchmark line": example(BENCHMARK + "\n", None),
            "no kernels were profiled": example(
                "==PROF== Connected to process 5151 (/usr/bin/python3.10)\n"
                f"{BENCHMARK}\n==PROF== Disconnected from process 5151\n"
                "==WARNING== No kernels were profiled.\n",
                None,
            ),
            "export only": example(
                log().partition("[5151]")[0] + "==PROF== Report: /tmp/report.ncu-rep\n", None
            ),
            "two Durations": example(
                log(result().replace("    Elapsed Cycles", "    Duration  usecond  9.99\n" * 2)),
                None,
            ),
            "csv": example(COMMA_SEPARATED, None),
            "summary": example(SUMMARY, None),
        }
    )
    return found


COMMA_SEPARATED = f"""\
==PROF== Connected to process 5151 (/usr/bin/python3.10)
{BENCHMARK}
==PROF== Disconnected from process 5151
"ID","Kernel Name","Context","Stream","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","triton_poi","1","7","8.6","GPU Speed Of Light Throughput","Duration","usecond","8.74"
"0","triton_poi","1","7","8.6","Memory Workload Analysis","Memory Throughput","byte/second","412.09"
"""
SUMMARY = f"""\
==PROF== Connected to process 5151 (/usr/bin/python3.10)
{BENCHMARK}
==PROF== Disconnected from process 5151
[5151] python3.10@127.0.0.1
  triton_poi_fused_mul_sin_2 (96, 1, 1)x(128, 1, 1), Device 0, CC 8.6, Invocations 2
    Section: GPU Speed Of Light Throughput
    ----------------- ----------- ------- ------- -------
    Metric Name       Metric Unit Minimum Maximum Average
    ----------------- ----------- ------- ------- -------
    Memory Throughput           %   57.48   57.50   57.49
    Duration              usecond    8.74    8.92    8.83
    ----------------- ----------- ------- ------- -------

    Section: Memory Workload Analysis
    ----------------- ------------ ------- ------- -------
    Metric Name        Metric Unit Minimum Maximum Average
    ----------------- ------------ ------- ------- -------
    Memory Throughput Gbyte/second  412.09  414.00  413.05
    Mem Busy                     %   33.07   33.07   33.07
    ----------------- ------------ ------- ------- -------
"""


def of_quick_logs() -> dict[str, Example]:
    """What --metrics prints, and what a batch leaves: no line of ncu's but the result."""
    base = quick_result(("nsecond", "8740"), ("byte/second", "1183624411.07"), "2024")
    lost = quick_result(bandwidth=("byte/second", "(!) n/a"))
    no_unit = quick_result(bandwidth=("", "(!) n/a"))
    failed = quick_result(("ns", "(!) nan"), ("byte/s", "(!) nan"))
    texts: dict[str, tuple[str, Cells | None]] = {
        "2025": (log(quick_result()), CELLS),
        "base units": (log(base), ("31.0", "8.74", "1.18362441107")),
        "wide": (log(quick_result(DURATION, BANDWIDTH, "2022")), CELLS),
        "of a batch": (f"{BENCHMARK}\n{quick_result(name='kernel-0/triton_')}", CELLS),
        "no bandwidth": (log(lost), ("31.0", "8.74", "")),
        "no bandwidth, no unit": (log(no_unit), ("31.0", "8.74", "")),
        "no bandwidth row": (log(quick_result(bandwidth=None)), ("31.0", "8.74", "")),
        "failed launch": (log(failed), None),
        "bandwidth not a number": (log(quick_result(bandwidth=("byte/s", "(!) nan"))), None),
        "duration not collected": (log(quick_result(("", "(!) n/a"))), None),
        "duration missing": (log(base.replace("gpu__time_duration.sum", "gpu__time.sum")), None),
        "no benchmark line": (log(base, benchmark=""), None),
    }
    return {f"quick, {name}": example(*pair) for name, pair in texts.items()}


def of_layouts() -> dict[str, Example]:
    """Each generation's layout, as it prints it by default and in base units."""
    found = {}
    for name in LAYOUTS:
        new = name in ("2024.3", "2025")
        time, rate = ("us", "Gbyte/s") if new else DURATION[:1] + BANDWIDTH[:1]
        found[f"layout {name}"] = example(log(result((time, "8.74"), (rate, "412.09"), name)))
        time, rate = ("ns", "byte/s") if new else ("nsecond", "byte/second")
        text = log(result((time, "8743"), (rate, "412087345166.25"), name))
        found[f"layout {name}, base units"] = example(text, ("31.0", "8.743", "412.08734516625"))
    return found


EXAMPLES: dict[str, Example] = {
    **of_layouts(),
    **of_units(),
    **of_locales(),
    **of_bad_numbers(),
    **of_surroundings(),
    **of_quick_logs(),
}

# What is cut at every byte, and mangled: short ones, one of each kind. Each ends in a section that
# no longer counts.
TAIL = b"    Section: Occupancy\n    -- -- --\n    Blocks  3\n    -- -- --\n"


def of_samples() -> dict[str, Example]:
    """The samples, with what they hold when they are whole."""
    base = result(("nsecond", "8743"), ("byte/second", "412087345166.25"), brief=True)
    old = result(("nsecond", "8743"), ("byte/second", "412087345166.25"), "2022", brief=True)
    exact = ("31.0", "8.743", "412.08734516625")
    large = ("31.0", "1308.412", "1407.21563281137")
    lost = quick_result(bandwidth=("byte/s", "(!) n/a"))
    texts: dict[str, tuple[str, Cells]] = {
        "2022, base units": (old, exact),
        "2024, base units": (base, exact),
        "no bandwidth row": (result(bandwidth=None, brief=True), ("31.0", "8.74", "")),
        "CRLF": (base.replace("\n", "\r\n"), exact),
        "quick": (quick_result(), CELLS),
        "quick, no bandwidth": (lost, ("31.0", "8.74", "")),
    }
    duration = ("nsecond", number("1308412", "", "de"))
    bandwidth = ("byte/second", number("1407215632811", "37", "de"))
    texts["locale de"] = (result(duration, bandwidth, brief=True), large)
    start = f"{BENCHMARK}\n"
    return {
        name: Example(encode(start + text) + TAIL, cells) for name, (text, cells) in texts.items()
    }


SAMPLES = of_samples()


def two_results() -> Example:
    """The Triton kernel's result after another's."""
    other = result(("usecond", "1.07"), ("Gbyte/second", "99.10"), name=AT_NATIVE, brief=True)
    names = (AT_NATIVE[:29] + "...", "triton_poi_fused_mul_sin_2")
    return Example(encode(log(other, result(brief=True), names=names)) + TAIL, CELLS)
