"""kda run and kda verify against the recurrence written out in Python."""

import json
import os
import tempfile
import unittest

from kda import kda, kda_json, problem, read, recurrence, relative, split, write

GATE = ("--gate", "bounded", "--lower-bound", "-5", "--beta-logits", "--qk-l2norm")


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.input = os.path.join(self.folder.name, "in.safetensors")
        self.output = os.path.join(self.folder.name, "out.safetensors")

    def run_file(self, tensors, *flags):
        write(self.input, tensors)
        process = kda("run", "--input", self.input, "--output", self.output, *flags)
        self.assertEqual(process.returncode, 0, process.stderr)
        return read(self.output), process

    def test_both_backends_follow_the_definition(self):
        for lengths, group in (((5, 0, 3), 1), ((70,), 2), ((1,), 3)):
            tensors = problem(lengths, group=group)
            want = recurrence(tensors)
            for backend in ("cpu", "reference"):
                with self.subTest(lengths=lengths, backend=backend):
                    out, _ = self.run_file(tensors, *GATE, "--backend", backend)
                    for name in ("o", "final_state"):
                        self.assertLess(relative(out[name][2], want[name]), 2e-5)

    def test_softplus_gate(self):
        tensors = problem((9, 20))
        want = recurrence(tensors, gate="softplus", beta_logits=False, l2norm=False)
        out, _ = self.run_file(tensors, "--gate", "softplus")
        self.assertLess(relative(out["o"][2], want["o"]), 2e-5)

    def test_flags_change_the_result(self):
        tensors = problem((6,))
        want = recurrence(tensors)["o"]
        for flags in (GATE[:4] + GATE[5:], GATE[:5], GATE[:3] + ("-2",) + GATE[4:]):
            out, _ = self.run_file(tensors, *flags)
            self.assertGreater(relative(out["o"][2], want), 1e-3, flags)

    def test_scale_is_a_factor_of_o(self):
        tensors = problem((6,))
        plain, _ = self.run_file(tensors, *GATE)
        scaled, _ = self.run_file(tensors, *GATE, "--scale", "-1")
        factor = -(4 ** 0.5)
        self.assertLess(relative(scaled["o"][2], [factor * x for x in plain["o"][2]]), 1e-6)
        self.assertEqual(scaled["final_state"], plain["final_state"])

    def test_state_layout(self):
        tensors = problem((6, 2))
        plain, _ = self.run_file(tensors, *GATE)
        dtype, (n, h, dim_k, dim_v), flat = tensors["initial_state"]

        def transposed(values, rows, columns):
            return [values[(m * rows + i) * columns + j] for m in range(n * h)
                    for j in range(columns) for i in range(rows)]

        tensors["initial_state"] = (dtype, (n, h, dim_v, dim_k), transposed(flat, dim_k, dim_v))
        turned, _ = self.run_file(tensors, *GATE, "--state-layout", "vk")
        self.assertEqual(turned["final_state"][1], [n, h, dim_v, dim_k])
        want = transposed(plain["final_state"][2], dim_k, dim_v)
        self.assertLess(relative(turned["final_state"][2], want), 1e-6)

    def test_output_dtypes(self):
        tensors = problem((6,), dtype="BF16")
        for flag, dtype in ((None, "BF16"), ("bf16", "BF16"), ("fp32", "F32"), ("fp16", "F16")):
            out, _ = self.run_file(tensors, *GATE, *(("--out-dtype", flag) if flag else ()))
            self.assertEqual(out["o"][0], dtype)
            self.assertEqual(out["o"][1], [1, 6, 2, 3])
            self.assertEqual(out["final_state"][0], "F32")
            self.assertLess(relative(out["o"][2], recurrence(tensors)["o"]), 6e-3)

    def test_decode_agrees(self):
        tensors = problem((1, 1, 1))
        out, process = self.run_file(tensors, *GATE, "--decode")
        self.assertLess(relative(out["o"][2], recurrence(tensors)["o"]), 2e-5)

    def test_checkpoints_are_states_of_shorter_runs(self):
        tensors = problem((7, 4))
        out, _ = self.run_file(tensors, *GATE, "--checkpoint-every", "3")
        self.assertEqual(out["checkpoints"][1], [3, 2, 4, 3])
        rows, size = out["checkpoints"][2], 2 * 4 * 3
        for row, lengths in ((0, (3, 0)), (1, (6, 0)), (2, (0, 3))):
            cut = dict(tensors)
            first = 0 if lengths[0] else 7
            count = sum(lengths)
            for name in ("q", "k", "v", "g", "beta"):
                dtype, shape, values = tensors[name]
                width = len(values) // shape[1]
                cut[name] = (dtype, (1, count, *shape[2:]),
                             values[first * width:(first + count) * width])
            cut["cu_seqlens"] = ("I64", (3,), [0, lengths[0], count])
            state = recurrence(cut)["final_state"]
            n = 0 if lengths[0] else 1
            self.assertLess(relative(rows[row * size:(row + 1) * size],
                                     state[n * size:(n + 1) * size]), 2e-5)

    def test_slots_leave_the_rest_of_the_pool(self):
        tensors = problem((3, 2, 4))
        want = recurrence(tensors)
        size = 2 * 4 * 3
        pool = [0.25] * (5 * size)
        slots = [4, -1, 1]
        for n, slot in enumerate(slots):
            if slot >= 0:
                pool[slot * size:(slot + 1) * size] = (
                    tensors["initial_state"][2][n * size:(n + 1) * size])
        tensors["initial_state"] = ("F32", (5, 2, 4, 3), pool)
        tensors["slots"] = ("I32", (3,), slots)
        out, _ = self.run_file(tensors, *GATE)
        for n, slot in enumerate(slots):
            if slot >= 0:
                self.assertLess(relative(out["final_state"][2][slot * size:(slot + 1) * size],
                                         want["final_state"][n * size:(n + 1) * size]), 2e-5)
        for slot in (0, 2, 3):
            self.assertEqual(out["final_state"][2][slot * size:(slot + 1) * size], [0.25] * size)
        self.assertEqual(out["o"][2][3 * 6:5 * 6], [0.0] * 12)
        process = kda("verify", "--input", self.input, *GATE)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)

    def test_prints_one_line_naming_what_ran(self):
        _, process = self.run_file(problem(), *GATE, "--backend", "reference")
        self.assertEqual(len(process.stdout.splitlines()), 1)
        self.assertIn("reference", process.stdout)
        self.assertEqual(process.stderr, "")

    def test_json_names_what_ran(self):
        write(self.input, problem())
        record = kda_json("run", "--input", self.input, "--output", self.output, *GATE,
                          "--backend", "cpu", "--isa", "baseline", "--rung", "port",
                          "--threads", "1")
        self.assertEqual(record["ran"]["isa"], "baseline")
        self.assertEqual(record["ran"]["backend"], "cpu")
        self.assertEqual(record["ran"]["switches"], ["safe_gate"])
        self.assertEqual(record["outputs"]["o"], {"dtype": "F32", "shape": [1, 8, 2, 3]})

    def test_set_changes_one_switch(self):
        write(self.input, problem())
        record = kda_json("run", "--input", self.input, "--output", self.output, *GATE, "--backend",
                          "cpu", "--rung", "port", "--set", "fuse=1", "--set", "safe_gate=0")
        self.assertEqual(record["ran"]["switches"], ["fuse"])

    def test_unused_tensors_are_named(self):
        tensors = problem()
        tensors["dtbias"] = tensors.pop("dt_bias")
        _, process = self.run_file(tensors, *GATE)
        self.assertIn("'dtbias'", process.stderr)

    def test_verify_says_good_and_off(self):
        write(self.input, problem())
        good = kda("verify", "--input", self.input, *GATE)
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("good", good.stdout)
        off = kda("verify", "--input", self.input, *GATE, "--backend", "cpu", "--tolerance",
                  "1e-12")
        self.assertEqual(off.returncode, 1)
        self.assertIn("OFF", off.stdout)

    def test_verify_catches_the_published_solver_on_identical_keys(self):
        # CaseA03: every key the same and no decay, where the 64-row chain in bf16 fails.
        tokens, dim = 64, 128
        key = [0.125 if d < 64 else 0.0 for d in range(dim)]
        tensors = {"q": ("BF16", (1, tokens, 1, dim), key * tokens),
                   "k": ("BF16", (1, tokens, 1, dim), key * tokens),
                   "v": ("BF16", (1, tokens, 1, dim), [float((7 * t + c) % 17 - 8)
                                                       for t in range(tokens) for c in range(dim)]),
                   "g": ("F32", (1, tokens, 1, dim), [0.0] * (tokens * dim)),
                   "beta": ("F32", (1, tokens, 1), [1.0] * tokens)}
        write(self.input, tensors)
        stable = kda("verify", "--input", self.input, "--scale", "1", "--backend", "cpu")
        self.assertEqual(stable.returncode, 0, stable.stdout + stable.stderr)
        chain = kda("verify", "--input", self.input, "--scale", "1", "--backend", "cpu",
                    "--solver", "neumann64")
        self.assertEqual(chain.returncode, 1, chain.stdout + chain.stderr)

    def test_verify_generates_and_saves(self):
        flags = ("--batch", 2, "--seqlen", 17, "--heads", 2)
        record = kda_json("verify", *flags, "--save-input", self.input)
        self.assertTrue(record["passed"])
        self.assertEqual(set(record["tensors"]), {"o", "final_state"})
        saved = read(self.input)
        self.assertEqual(saved["cu_seqlens"][2], [0, 17, 34])
        self.assertTrue(any(x != 0 for x in saved["initial_state"][2]))
        again = kda_json("verify", "--input", self.input)
        self.assertEqual(again["tensors"], record["tensors"])
        self.assertEqual(again["from_file"]["gate"], "bounded")
        self.assertEqual(record["from_file"], {})

    def test_saved_inputs_say_what_they_are(self):
        for flags in ((), ("--gate", "softplus"), ("--gate", "log"), ("--lower-bound", "-0.3"),
                      ("--beta-logits", "--decode"), ("--qk-l2norm", "--scale", "0.1"),
                      ("--checkpoint-every", "3"), ("--out-dtype", "fp16"),
                      ("--state-layout", "vk", "--dim-v", "128")):
            with self.subTest(flags=flags):
                made = kda_json("verify", "--batch", 2, "--seqlen", 9, "--heads", 1, *flags,
                                "--save-input", self.input)
                again = kda_json("verify", "--input", self.input)
                self.assertEqual(again["tensors"], made["tensors"])
                process = kda("run", "--input", self.input, "--output", self.output)
                self.assertEqual(process.returncode, 0, process.stderr)
                self.assertEqual(process.stderr, "")
                self.assertEqual(len(process.stdout.splitlines()), 1)
                self.assertIn("from the file: gate ", process.stdout)
                self.assertEqual(split(self.output)[1], split(self.input)[1])

    def test_the_command_line_wins_over_the_file(self):
        tensors = problem((6,))
        metadata = {"kda.gate": "bounded", "kda.lower_bound": "-2", "kda.beta_logits": "true",
                    "kda.qk_l2norm": "true", "kda.decode": "true"}
        write(self.input, tensors, metadata)
        run = ("run", "--input", self.input, "--output", self.output)
        process = kda(*run)
        self.assertIn("from the file: gate bounded, lower_bound -2, beta_logits true",
                      process.stdout)
        self.assertIn("decode", process.stdout)
        self.assertLess(relative(read(self.output)["o"][2],
                                 recurrence(tensors, lower_bound=-2)["o"]), 2e-5)
        process = kda(*run, "--lower-bound", "-5", "--gate", "bounded", "--no-decode")
        self.assertIn("--lower-bound -5 is used", process.stderr)
        self.assertIn("--decode false is used", process.stderr)
        self.assertIn("from the file: beta_logits true", process.stdout)
        self.assertLess(relative(read(self.output)["o"][2], recurrence(tensors)["o"]), 2e-5)
        process = kda(*run, "--gate", "softplus", "--no-beta-logits", "--no-qk-l2norm")
        want = recurrence(tensors, gate="softplus", beta_logits=False, l2norm=False)
        self.assertLess(relative(read(self.output)["o"][2], want["o"]), 2e-5)
        self.assertIn("says bounded", process.stderr)

    def test_a_raw_gate_needs_its_name(self):
        for name in ("A_log", "dt_bias"):
            tensors = problem((6,))
            del tensors["dt_bias" if name == "A_log" else "A_log"]
            write(self.input, tensors)
            for command in (("run", "--output", self.output), ("verify",)):
                process = kda(*command, "--input", self.input)
                self.assertEqual(process.returncode, 2)
                for word in (name, "--gate bounded", "--gate softplus"):
                    self.assertIn(word, process.stderr)

    def test_growth_is_noted(self):
        tensors = problem((6,))
        del tensors["A_log"], tensors["dt_bias"]
        dtype, shape, values = tensors["g"]
        inf = float("inf")
        tensors["g"] = (dtype, shape, [-1.0, 0.0, -inf, float("nan")] + [-1.0] * (len(values) - 4))
        _, process = self.run_file(tensors)
        self.assertEqual(process.stderr, "")
        tensors["g"] = (dtype, shape, [0.5, 1e-20] + [-1.0] * (len(values) - 2))
        _, process = self.run_file(tensors)
        self.assertIn("2 of 48 elements of g are above 0", process.stderr)
        self.assertEqual(kda("verify", "--input", self.input).stderr.count("above 0"), 1)

    def test_what_is_not_finite_is_counted(self):
        tensors = problem((5,), heads=1)
        dtype, shape, values = tensors["v"]
        tensors["v"] = (dtype, shape, values[:-3] + [float("nan")] * 3)
        write(self.input, tensors)
        text = kda("verify", "--input", self.input, *GATE).stdout
        self.assertIn("o: of 15 elements 3 of the result and 3 of the oracle are not finite", text)
        record = kda_json("verify", "--input", self.input, *GATE)["tensors"]
        self.assertEqual((record["o"]["not_finite"], record["o"]["oracle_not_finite"]), (3, 3))
        self.assertEqual(record["final_state"]["not_finite"], 12)
        write(self.input, problem())
        self.assertNotIn("not finite", kda("verify", "--input", self.input, *GATE).stdout)

    def test_verify_every_kind_of_input(self):
        for dtype in ("bf16", "fp16", "fp32"):
            for gate in ("bounded", "softplus", "log"):
                for values in ("mix", "published", "slow", "saturated"):
                    process = kda("verify", "--batch", 1, "--seqlen", 70, "--heads", 1, "--gate",
                                  gate, "--values", values, "--dtype", dtype, "--gate-dtype",
                                  dtype)
                    self.assertEqual(process.returncode, 0, (dtype, gate, values, process.stdout))

    def test_empty_and_no_sequences(self):
        record = kda_json("verify", "--batch", 2, "--seqlen", 0, "--heads", 1)
        self.assertTrue(record["passed"])

    def test_info(self):
        info = kda_json("info")
        self.assertEqual([row["name"] for row in info["switches"]],
                         ["safe_gate", "fuse", "unified_layout", "flat_grid", "head_block"])
        self.assertEqual(info["rungs"][0], {"name": "original", "switches": []})
        self.assertTrue(any(isa["available"] for isa in info["isas"][1:]))
        self.assertIn("git_commit", info["manifest"])
        text = kda("info").stdout
        self.assertIn("CPU", text)
        limits = kda("info", "--limits").stdout.splitlines()
        self.assertTrue(limits[1].startswith("| ---"))
        self.assertEqual(len(limits) - 2, len(info["limits"]))
        self.assertEqual(len(kda("info", "--switches").stdout.splitlines()), 7)
        self.assertEqual(len(kda("info", "--isas").stdout.splitlines()) - 2, len(info["isas"]) - 1)

    def test_max_isa_caps(self):
        here = kda_json("info")["isas"]
        first = next(isa["isa"] for isa in here[1:] if isa["available"])
        cap = {"KDA_MAX_ISA": first}
        info = json.loads(kda("info", "--json", env=cap).stdout)
        self.assertEqual(info["isas"][0]["ran"]["isa"], first)
        self.assertEqual(info["manifest"]["KDA_MAX_ISA"], first)
        self.assertEqual([isa["isa"] for isa in info["isas"][1:] if isa["available"]], [first])
        if "KDA_MAX_ISA" not in os.environ:
            self.assertEqual([isa["capped"] for isa in info["isas"]],
                             [(isa["available"] or "refused" in isa)
                              and isa["isa"] not in ("auto", first) for isa in here])
            self.assertFalse(any(isa["capped"] for isa in here))
        text = kda("info", env=cap).stdout
        self.assertEqual(text.count("capped by KDA_MAX_ISA"),
                         sum(isa["capped"] for isa in info["isas"]))
        wrong = kda("info", env={"KDA_MAX_ISA": "foo"})
        self.assertEqual(wrong.returncode, 2)
        self.assertIn('KDA_MAX_ISA: the environment variable is "foo", must be', wrong.stderr)
        other = next(isa["isa"] for isa in info["isas"][1:] if not isa["available"])
        forced = kda("verify", "--isa", other, "--seqlen", 3, env=cap)
        self.assertEqual(forced.returncode, 1)
        self.assertIn("--isa: " + other + " is forced", forced.stderr)


if __name__ == "__main__":
    unittest.main()
