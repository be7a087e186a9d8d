"""kda bench, ladder and demo: verified, honest records. No times are judged."""

import os
import subprocess
import unittest

from kda import BINARY, kda, kda_json

FAST = ("--warmup", 1, "--repeat", 2, "--threads", 1)
RUNGS = ["original", "port", "fuse", "unified_layout", "flat_grid", "optimized"]


class Bench(unittest.TestCase):
    def check(self, record):
        self.assertTrue(record["passed"])
        self.assertLessEqual(record["p10_ms"], record["median_ms"])
        self.assertLessEqual(record["median_ms"], record["p90_ms"])
        self.assertGreater(record["median_ms"], 0)
        self.assertGreater(record["max_error"], 0)
        self.assertLess(record["max_error"], 1e-2)
        tokens = (record["batch"] * record["seqlen"] if isinstance(record["seqlen"], int)
                  else sum(record["seqlen"]))
        self.assertAlmostEqual(record["token_heads_per_s"] * record["median_ms"] / 1e3,
                               tokens * record["value_heads"], places=3)
        self.assertGreaterEqual(record["padded_tokens_per_s"], record["tokens_per_s"])

    def test_record_and_manifest(self):
        result = kda_json("bench", "--batch", 3, "--seqlen", 20, "--heads", 2, "--seed", 7, *FAST)
        self.assertEqual(len(result["results"]), 1)
        record = result["results"][0]
        self.check(record)
        self.assertEqual((record["batch"], record["seqlen"], record["heads"]), (3, 20, 2))
        self.assertEqual((record["threads"], record["repeat"], record["warmup"]), (1, 2, 1))
        self.assertEqual(record["rung"], "optimized")
        for key in ("isa", "solver", "switches", "switches_fallback", "description", "verified"):
            self.assertIn(key, record)
        manifest = result["manifest"]
        self.assertEqual(manifest["seed"], 7)
        self.assertEqual(manifest["processors"], len(os.sched_getaffinity(0)))
        self.assertIn("--seqlen 20", manifest["command"])
        for key in ("git_commit", "compiler", "compiler_flags", "cpu", "cpu_features",
                    "libraries", "KDA_MAX_ISA", "threads_pinned", "rungs"):
            self.assertIn(key, manifest)
        self.assertTrue(result["complete"])
        self.assertGreater(result["zero_state_ratio"], 0)

    def test_rungs_and_isas_are_told_apart(self):
        result = kda_json("bench", "--lengths", "5,70,1", "--heads", 8, "--rung",
                          "original,port,optimized", "--isa", "baseline,auto", *FAST)
        records = result["results"]
        self.assertEqual(len(records), 6)
        for record in records:
            self.check(record)
        self.assertEqual(records[0]["switches"], [])
        self.assertEqual(records[0]["isa"], "baseline")
        self.assertEqual(records[2]["switches"], ["safe_gate"])
        self.assertIn("head_block", records[5]["switches"])
        pairs = {(c["slow"], c["fast"]) for c in result["comparisons"]}
        self.assertEqual(len(pairs), 9)
        self.assertIn(("original/baseline", "original/auto"), pairs)
        self.assertIn(("port/auto", "optimized/auto"), pairs)
        self.assertNotIn(("original/baseline", "optimized/auto"), pairs)

    def test_fallback_is_in_the_record(self):
        record = kda_json("bench", "--batch", 1, "--seqlen", 9, "--heads", 3, "--set",
                          "safe_gate=0", *FAST)["results"][0]
        self.assertEqual(record["switches_fallback"], ["head_block"])
        self.assertNotIn("head_block", record["switches"])

    def test_a_switch_of_a_rung_falls_back(self):
        process = kda("verify", "--rung", "optimized", "--set", "fuse=0", "--seqlen", 9)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("head_block off: needs fuse", process.stdout)

    def test_the_reference_is_no_rung(self):
        flags = ("bench", "--backend", "reference", "--batch", 1, "--seqlen", 9, "--heads", 1,
                 *FAST)
        record = kda_json(*flags)["results"][0]
        self.check(record)
        self.assertEqual((record["rung"], record["isa"], record["backend"]),
                         (None, None, "reference"))
        text = kda(*flags).stdout
        for word in ("optimized", "baseline"):
            self.assertNotIn(word, text)
        self.assertIn("the recurrence in fp64", text)
        self.assertIn("1 head,", text)
        self.assertIn("1 thread", text)
        self.assertNotIn("1 threads", text)

    def test_large_problems_say_what_was_verified(self):
        result = kda_json("bench", "--batch", 4, "--seqlen", 50, "--heads", 4, "--verify-tokens",
                          120, *FAST)
        self.assertIn("2 of 16 (sequence, head) pairs, 100 of 800 token-heads, 2 final", result["results"][0]["verified"])
        result = kda_json("bench", "--batch", 1, "--seqlen", 50, "--heads", 1, "--verify-tokens",
                          20, *FAST)
        self.assertIn("20 of 50 token-heads, 0 final states", result["results"][0]["verified"])

    def test_decode(self):
        record = kda_json("bench", "--decode", "--batch", 5, "--heads", 2, *FAST)["results"][0]
        self.check(record)
        self.assertEqual(record["seqlen"], 1)
        self.assertEqual(record["rung"], None)

    def test_inputs(self):
        for flags in (("--gate", "softplus"), ("--gate", "log"), ("--dtype", "fp32"),
                      ("--beta-logits",), ("--dim-k", 64, "--dim-v", 32), ("--group", 2),
                      ("--dtype", "fp16", "--gate-dtype", "fp32")):
            with self.subTest(flags=flags):
                record = kda_json("bench", "--batch", 2, "--seqlen", 70, "--heads", 2, *flags,
                                  *FAST)["results"][0]
                self.check(record)

    def test_failed_verification_is_not_timed(self):
        # fp32 problems have a limit that the bf16 chain of the published solver cannot meet.
        process = kda("bench", "--batch", 1, "--seqlen", 64, "--heads", 1, "--dtype", "fp32",
                      "--gate-dtype", "fp32", "--values", "slow", "--solver", "neumann64",
                      "--backend", "cpu", *FAST)
        self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
        self.assertIn("not timed", process.stdout)
        self.assertIn("relative error", process.stderr)

    def test_workload_shapes(self):
        result = kda_json("bench", "--workload", "sharegpt", "--batches", 2, "--heads", 1,
                          "--rung", "port,optimized", "--warmup", 1, "--repeat", 1,
                          "--verify-tokens", 64)
        self.assertEqual([r["batch"] for r in result["replays"]], [1, 2, 4, 8, 16, 32, 64])
        self.assertEqual([(r["batch"], r["seqlen"]) for r in result["results"][:8:2]],
                         [(1, 10), (1, 16), (2, 7), (2, 14)])
        for replay in result["replays"]:
            self.assertEqual(replay["batches"], 2)
            self.assertEqual(replay["comparisons"][0]["problems"], 2)

    def test_time_limit_is_told(self):
        result = kda_json("bench", "--workload", "grid", "--heads", 1, "--time-limit", "0.001",
                          *FAST)
        self.assertFalse(result["complete"])
        self.assertEqual(result["skipped_by_time_limit"], 56 - len(result["results"]))

    def test_ladder(self):
        result = kda_json("ladder", "--lengths", "70,3", "--heads", 8, *FAST)
        self.assertEqual([record["rung"] for record in result["results"]], RUNGS)
        counts = [len(record["switches"]) for record in result["results"]]
        self.assertEqual(counts, [0, 1, 2, 3, 4, 5])
        for record in result["results"]:
            self.check(record)
        text = kda("ladder", "--lengths", "70,3", "--heads", 8, *FAST).stdout
        self.assertIn("+safe_gate", text)
        self.assertIn("####", text)

    # Inputs and verification take seconds here: the first line does not wait for the measurements.
    def test_progress_comes_early(self):
        with subprocess.Popen([BINARY, "bench", "--batch", "1", "--seqlen", "8192", "--heads", "32",
                               "--backend", "reference", "--threads", "1"],
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              text=True) as process:
            line = process.stderr.readline()
            process.kill()
        self.assertRegex(line, r"^bench custom: \d+ s  (making inputs|verifying reference)")

    def test_demo(self):
        process = kda("demo", "--time-limit", 3)
        self.assertEqual(process.returncode, 0, process.stderr)
        for word in ("B = 1", "B = 8", "B = 64", "original", "port", "optimized", "every result",
                     "What ran", "\n  padded tokens/s  ", "\n  rel error  ",
                     f"{BINARY} ladder"):
            self.assertIn(word, process.stdout)


if __name__ == "__main__":
    unittest.main()
