"""kda tpu: what works without libtpu, what it says where there is none, and, with it, predictions."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from kda import BINARY, kda, kda_json, read

COMMANDS = ("predict", "ladder", "bars", "validate", "trace", "compile", "emit", "eval")
SMALL = ("--batch", "1", "--seqlen", "64", "--heads", "8")
FIGURE = "predicted (libtpu static schedule)"


def why_no_libtpu():
    process = kda("tpu", "compile", "--kernel", "decode", "--batch", "1", "--heads", "8",
                  "--time-limit", "60")
    return "" if process.returncode == 0 else process.stderr.strip()


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def refused(self, arguments, code, *words, env=None):
        process = kda("tpu", *arguments, env=env)
        self.assertEqual(process.returncode, code, (arguments, process.stderr, process.stdout))
        self.assertEqual(len(process.stderr.splitlines()), 1, process.stderr)
        self.assertEqual(process.stdout, "")
        for word in words:
            self.assertIn(word, process.stderr)


class WithoutLibtpu(Folder):
    def test_help_teaches(self):
        top = kda("tpu", "--help")
        self.assertEqual(top.returncode, 0)
        self.assertIn("scripts/setup tpu", top.stdout)
        self.assertNotIn("compile-child", top.stdout)
        for command in COMMANDS:
            self.assertIn(command, top.stdout)
            process = kda("tpu", command, "--help")
            self.assertEqual((process.returncode, process.stderr), (0, ""))

    def test_wrong_arguments(self):
        for arguments, words in (
                ([], ("command is needed", "predict")),
                (["frobnicate"], ("'frobnicate' is no command;", "predict, ladder, bars", "eval")),
                (["predcit"], ("'predcit' is no command, predict is;",)),
                (["emit"], ("--output",)),
                (["emit", "--output", self.folder, "--heads", "12"], ("--heads: 12", "mega", "multiple of 8")),
                (["emit", "--output", self.folder, "--rung", "port"], ("--rung", "ladder")),
                (["emit", "--output", self.folder, "--kernel", "decode", "--precise"],
                 ("decode", "precise")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--rung", "best"],
                 ("--rung", "best", "original")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--heads", "12", "--set",
                  "head_block=1"], ("head_block", "multiple of 8")),
                (["emit", "--output", self.folder, "--kernel", "decode", "--seqlen", "2"],
                 ("--seqlen", "2 tokens", "decode", "1 token of each")),
                (["emit", "--output", self.folder, "--kernel", "decode", "--lengths", "1,3"],
                 ("--lengths", "3 tokens")),
                (["emit", "--output", self.folder, "--lengths", "130,,64"], ("--lengths", "''")),
                (["emit", "--output", self.folder, "--lengths", "130,"], ("--lengths", "''")),
                (["emit", "--output", self.folder, "--lengths", "8,x"], ("--lengths", "'x'")),
                (["emit", "--output", self.folder, "--slots", "2"],
                 ("--slots: 2", "4 sequences")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--slots", "9"],
                 ("--slots", "ladder")),
                (["emit", "--output", self.folder, "--gate", "softplus", "--lower-bound", "-3"],
                 ("--lower-bound: -3", "--gate softplus", "bounded")),
                (["emit", "--output", self.folder, "--lower-bound", "1"], ("--lower-bound: 1",)),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--rung", "fuse",
                  "--form", "serial"], ("--form: serial", "head_block", "--rung fuse")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--rung", "serial",
                  "--form", "grid"], ("--form: grid", "--rung serial")),
                (["emit", "--output", self.folder, "--lengths", "0,0"], ("--lengths",)),
                (["emit", "--output", self.folder, "--gate-dtype", "fp32"],
                 ("--gate-dtype: fp32", "mega", "bf16")),
                (["emit", "--output", "/dev/null/x"], ("--output", "/dev/null/x")),
                (["emit", "--output", self.folder, "--kernel", "decode", "--batch", "65536",
                  "--heads", "1024"], ("--heads: 1024", "--kernel decode", "at most 664", "VMEM")),
                (["emit", "--output", self.folder, "--kernel", "decode", "--lengths", "1,0"],
                 ("--lengths: 0 tokens", "1 token of each")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--precise"],
                 ("--precise: ", "--kernel ladder", "mega")),
                (["emit", "--output", self.folder, "--lower-bound", "-1e39"],
                 ("--lower-bound: -1e+39", "-1e+38")),
                (["emit", "--output", self.folder, "--batch", "65536", "--seqlen", "16777216"],
                 ("--batch, --seqlen: ", "16777216")),
                (["emit", "--output", self.folder, "--kernel", "ladder", "--rung", "original",
                  "--batch", "65536", "--seqlen", "256"], ("ladder", "chunks x sequences")),
                (["emit", "--output", ""], ("--output", "''")),
                (["trace", "--output", ""], ("--output", "''")),
                (["validate", "--keep", "/dev/null/x"], ("--keep", "/dev/null/x")),
                (["validate", "--keep", __file__], ("--keep", __file__)),
                (["bars", "--target", "v5p"], ("--target", "'v5p'", "a v6e")),
                (["bars", "--target", "v6e:2x2"], ("--target", "'v6e:2x2'", "a v6e")),
                (["predict", "--target", "v9"], ("--target", "v9", "v6e")),
                (["predict", "--target", "v6e:2x2", "--heads", "16"], ("--heads: 16", "multiple of 32", "--target v6e:2x2")),
                (["predict", "--kernel", "ladder", "--target", "v6e:2x2"],
                 ("--target: v6e:2x2", "ladder")),
                (["ladder", "--heads", "12"], ("--heads: 12", "mega")),
                (["predict", "--time-limit", "0"], ("--time-limit", "0")),
                (["validate", "--points", "8x1,8x3"], ("--points", "8x3")),
                (["validate", "--rung", "best"], ("--rung", "best", "original")),
                (["predict", "--gate", "hard"], ("--gate", "hard", "bounded")),
                (["eval", "--batch", "1", "--dim-k", "64"], ("K = 64", "128")),
                (["eval", "--dtype", "fp32"], ("q", "BF16")),
                (["eval", "--gate-dtype", "fp32"], ("--gate-dtype: fp32", "mega")),
                (["eval", "--decode"], ("--decode", "--kernel decode")),
                (["eval", "--kernel", "decode", "--precise"], ("--precise: ", "--kernel decode")),
                (["emit", "--output", self.folder, "--batch", "1", "--seqlen", "16777216",
                  "--heads", "1024"], ("chunks x groups of heads", "5592405")),
                (["eval", "--kernel", "ladder", "--checkpoint-every", "64"],
                 ("--checkpoint-every: 64", "ladder")),
                (["eval", "--input", __file__], ("--input", "not a safetensors file")),
                (["eval", "--input", "/no/such"], ("/no/such",))):
            with self.subTest(arguments=arguments):
                self.refused(arguments, 2, *words)

    def test_hints_name_the_command(self):
        self.refused(["predict", "--target", "v9"], 2, f"see {BINARY} tpu predict --help")
        self.refused(["predict", "--foo"], 2, "kda tpu predict: ", f"see {BINARY} tpu predict")

    def test_output_that_cannot_be_is_found_first(self):
        for command in (["compile"], ["trace"], ["eval"]):
            for path in ("/nodir/x", "/dev/null/x", self.folder):
                with self.subTest(command=command, path=path):
                    self.refused([*command, "--output", path], 2, "--output", path)

    def test_help_of_eval_holds_what_it_takes(self):
        text = kda("tpu", "eval", "--help").stdout
        for option in ("--dtype", "--dim-k", "--dim-v", "--group", "--out-dtype", "--state-layout",
                       "--decode"):
            self.assertNotRegex(text, rf"(?m)^  {option}[ ,]")
        for word in ("--gate-dtype", "--qk-l2norm", "multiple of 8"):
            self.assertIn(word, text)

    def test_program_says_what_makes_it_differ(self):
        def program(*flags):
            return kda_json("tpu", "emit", *SMALL, *flags, "--output", self.folder)["program"]

        self.assertIn("gates by their bound", program())
        self.assertIn("lower_bound -5", program())
        self.assertIn("gates without a bound", program("--lower-bound", "-5.1"))
        self.assertIn("lower_bound -5.1", program("--lower-bound", "-5.1"))
        self.assertIn("gates without a bound", program("--gate", "softplus"))
        different = program("--beta-dtype", "fp32", "--qk-l2norm", "--beta-logits", "--slots", "3",
                            "--no-initial-state", "--no-final-state")
        for word in ("beta fp32 logits", "qk_l2norm", "3 slots", "states from zero",
                     "no final states"):
            self.assertIn(word, different)

    def test_serial_is_a_rung(self):
        flags = ("tpu", "emit", "--kernel", "ladder", *SMALL, "--output", self.folder)
        self.assertEqual(kda_json(*flags, "--rung", "serial")["program"],
                         kda_json(*flags, "--form", "serial")["program"])

    def test_no_libtpu_is_one_line(self):
        for command in (["compile"], ["predict"], ["ladder"], ["bars"], ["validate"],
                        ["trace", "--output", self.path("x.svg")]):
            with self.subTest(command=command):
                self.refused([*command, "--libtpu", "/no/such/libtpu.so"], 1, "/no/such/libtpu.so")
                self.refused(command, 1, "KDA_LIBTPU", env={"KDA_LIBTPU": "/neither/this"})

    def test_emit(self):
        for kernel, names in (("mega", ("mega.stablehlo.mlir", "kda_mega.mosaic.mlir")),
                              ("decode", ("decode.stablehlo.mlir", "kda_decode.mosaic.mlir")),
                              ("ladder", ("ladder.stablehlo.mlir", "gate_intra.mosaic.mlir",
                                          "inter_output.mosaic.mlir"))):
            shape = ("--batch", "2", "--heads", "8", *(("--seqlen", "70") * (kernel != "decode")))
            result = kda_json("tpu", "emit", "--kernel", kernel, *shape, "--output", self.folder)
            self.assertEqual([os.path.basename(f["path"]) for f in result["files"]], list(names))
            for file in result["files"]:
                self.assertEqual(os.path.getsize(file["path"]), file["bytes"])
            with open(self.path(names[0]), encoding="utf-8") as file:
                self.assertIn("tpu_custom_call", file.read())
            with open(self.path(names[1]), encoding="utf-8") as file:
                self.assertIn("stable_mosaic.version", file.read())

    def test_eval_follows_the_oracle(self):
        for flags in (("--lengths", "3,0,70"), ("--kernel", "decode", "--batch", "3"),
                      ("--kernel", "ladder", *SMALL[:4], "--rung", "original"),
                      ("--kernel", "ladder", *SMALL[:4], "--qk-l2norm", "--beta-logits")):
            with self.subTest(flags=flags):
                result = kda_json("tpu", "eval", "--heads", "8", *flags)
                self.assertTrue(result["passed"])
                self.assertLess(result["tensors"]["o"]["relative_error"], 6e-3)
                self.assertLess(result["tensors"]["final_state"]["relative_error"], 6e-3)
                limits = {n: t["relative_limit"] for n, t in result["tensors"].items()}
                fp32 = "decode" in flags  # whose products are fp32's; o is stored in bf16
                self.assertEqual(limits, {"o": 2e-5 + 2**-8 if fp32 else 6e-3,
                                          "final_state": 2e-5 if fp32 else 6e-3})

    def test_eval_runs_what_is_compiled(self):
        for kernel in ("mega", "decode", "ladder"):
            shape = ("--kernel", kernel, "--batch", "2", "--heads", "8",
                     *(("--seqlen", "3") * (kernel != "decode")))
            for flags in ((), ("--beta-dtype", "fp32"), ("--beta-dtype", "bf16"),
                          ("--gate", "log"), ("--gate", "softplus", "--qk-l2norm")):
                with self.subTest(kernel=kernel, flags=flags):
                    self.assertEqual(
                        kda_json("tpu", "eval", *shape, *flags)["program"],
                        kda_json("tpu", "emit", *shape, *flags, "--output", self.folder)["program"])

    def test_eval_of_a_file(self):
        made, out, cpu = (self.path(n) for n in ("made.safetensors", "out.safetensors",
                                                 "cpu.safetensors"))
        self.assertEqual(kda("verify", "--heads", "8", "--seqlen", "70", "--save-input",
                             made).returncode, 0)
        result = kda_json("tpu", "eval", "--input", made, "--output", out)
        self.assertTrue(result["passed"])
        self.assertEqual(result["from_file"]["gate"], "bounded")
        self.assertEqual(kda("run", "--input", made, "--output", cpu).returncode, 0)
        self.assertEqual({n: t[:2] for n, t in read(out).items()},
                         {n: t[:2] for n, t in read(cpu).items()})
        self.refused(["eval", "--input", made, "--output", made], 2, "--output", made)

    def test_eval_that_is_off_fails(self):
        process = kda("tpu", "eval", *SMALL, "--tolerance", "1e-9")
        self.assertEqual(process.returncode, 1)
        self.assertIn("OFF", process.stdout)


class WithLibtpu(Folder):
    @classmethod
    def setUpClass(cls):
        why = why_no_libtpu()
        if why:
            raise unittest.SkipTest(f"no libtpu: {why}")

    def test_compile(self):
        out = self.path("kda.bin")
        result = kda_json("tpu", "compile", *SMALL, "--output", out)
        compiled = result["compiled"]
        self.assertEqual(os.path.getsize(out), compiled["executable_bytes"])
        for name in ("code_bytes", "argument_bytes", "output_bytes", "compile_seconds"):
            self.assertGreater(compiled[name], 0, name)
        self.assertRegex(compiled["fingerprint"], "^[0-9a-f]{16,}$")
        self.assertGreater(result["kernels"][0]["declared_vmem_bytes"], 0)

    def test_predict(self):
        result = kda_json("tpu", "predict", *SMALL)
        self.assertEqual(result["figure"], FIGURE)
        self.assertAlmostEqual(result["predicted_ms"], result["kernels_ms"] + result["xla_ms"])
        self.assertGreater(result["wall_ms"], result["predicted_ms"])
        kernel, = result["kernels"]
        for name in ("steps", "cycles_per_step", "hbm_bytes", "vmem_bytes"):
            self.assertGreater(kernel[name], 0, name)
        for name in ("steps", "grid_steps", "spills", "fills"):
            self.assertIsInstance(kernel[name], int, name)
        self.assertIn(kernel["bound"], ("cycles", "hbm"))
        for unit, share in kernel["occupancy"].items():
            self.assertTrue(0 <= share <= 1, unit)
        self.assertEqual(result["problem"]["lengths"], [64])
        self.assertIn("git_commit", result["manifest"])

    def test_text_says_what_it_is(self):
        process = kda("tpu", "predict", "--kernel", "decode", "--batch", "2", "--heads", "8")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn(FIGURE, process.stdout)

    def test_other_targets_are_unproven(self):
        process = kda("tpu", "predict", "--kernel", "decode", "--batch", "2", "--heads", "8",
                      "--target", "v5p")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("unproven", process.stdout)

    def test_trace(self):
        out = self.path("step.svg")
        result = kda_json("tpu", "trace", *SMALL, "--output", out)
        with open(out, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("<svg") or text.startswith("<?xml"))
        self.assertEqual(result["figure"], FIGURE)
        stages = {(s["stage"], s["part"]): s for s in result["stages"]}
        # 8 heads, which are four pairs, of each of the step's two chunks.
        for stage in (("gate_cumsum", ""), ("intra_chunk", ""), ("intra_chunk", "solve"),
                      ("inter_chunk", ""), ("output", "")):
            self.assertGreater(stages[stage]["matmuls"], 0, stage)
            self.assertEqual((stages[stage]["heads"], stages[stage]["chunks"]), (8, 2), stage)
        none = stages["", ""]
        self.assertEqual((none["matmuls"], none["pushes"], none["pops"]), (0, 0, 0))
        self.assertEqual(min(s["first"] for s in result["stages"]), 0)
        predicted = kda_json("tpu", "predict", *SMALL)["kernels"][0]
        self.assertEqual(result["cycles_per_step"], predicted["cycles_per_step"])
        self.assertGreater(result["bundles"], 0)
        for word in ("h0+1", "c1 h6+7", "side by side", ">0</text>"):
            self.assertIn(word, text)
        self.assertNotIn("h8", text)
        self.refused(["trace", *SMALL, "--output", out, "--kernel-name", "nope"], 2, "nope",
                     "kda_mega")

    def test_trace_of_the_ladder(self):
        result = kda_json("tpu", "trace", "--kernel", "ladder", *SMALL, "--output",
                          self.path("x.svg"))
        for s in result["stages"]:
            if s["stage"] == "":
                self.assertEqual((s["matmuls"], s["pushes"], s["pops"]), (0, 0, 0), s["part"])
            self.assertNotRegex(s["part"], "^-")
        self.assertIn("output", {s["stage"] for s in result["stages"]})

    def test_what_does_not_fit_is_said(self):
        self.refused(["predict", "--batch", "64", "--seqlen", "131072", "--heads", "32"], 1, "HBM",
                     "available")

    def test_nothing_is_left_behind(self):
        environment = {**os.environ, "TMPDIR": self.folder}
        kda("tpu", "predict", "--batch", "64", "--seqlen", "131072", "--heads", "32",
            env={"TMPDIR": self.folder})  # is refused
        self.assertEqual(os.listdir(self.folder), [])
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([BINARY, "tpu", "predict"], env=environment,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end = time.monotonic() + 60
            while not os.listdir(self.folder) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertNotEqual(os.listdir(self.folder), [])
            time.sleep(1)  # libtpu is at it
            process.send_signal(number)
            self.assertEqual(process.wait(60), -number)
            self.assertEqual(os.listdir(self.folder), [])

    def test_progress_is_time(self):
        process = kda("tpu", "predict", "--batch", "1", "--heads", "16")
        self.assertNotRegex(process.stderr, "%|left")

    def test_a_compilation_has_a_time_limit(self):
        self.refused(["predict", *SMALL, "--time-limit", "0.01"], 1, "0.01 s")

    def test_ladder(self):
        process = subprocess.run([BINARY, "tpu", "ladder", "--batch", "1", "--seqlen", "32",
                                  "--heads", "24", "--json"], capture_output=True, text=True,
                                 timeout=600)  # eight compilations
        self.assertEqual(process.returncode, 0, process.stderr)
        results = {r["rung"]: r for r in json.loads(process.stdout)["results"]}
        self.assertEqual(list(results), ["original", "port", "fuse", "unified_layout", "flat_grid",
                                         "serial", "optimized", "mega"])
        self.assertEqual(results["original"]["published_ms"], 0.9666)
        self.assertIsNone(results["mega"]["published_ms"])
        self.assertLess(results["optimized"]["predicted_ms"], results["original"]["predicted_ms"])
        self.assertLess(results["mega"]["predicted_ms"], results["optimized"]["predicted_ms"])

    def test_validate(self):
        arguments = ("tpu", "validate", "--points", "8x1", "--rung", "optimized", "--keep",
                     self.folder)
        result = kda_json(*arguments)
        self.assertEqual([(r["rung"], r["points"]) for r in result["rungs"]], [("optimized", 1)])
        (point,) = result["results"]
        self.assertEqual(point["measured_ms"], 0.1866)
        self.assertAlmostEqual(point["wall_ms"], point["predicted_ms"] + 0.122, places=6)
        self.assertAlmostEqual(result["rungs"][0]["worst_error"], abs(1 - point["ratio"]), places=6)
        self.assertEqual(kda_json(*arguments, "--time-limit", "0.01")["results"], [point],
                         "what is kept is not compiled again")
        both = kda(*arguments[:3], "8x1,8x64", *arguments[4:], "--time-limit", "0.01")
        self.assertEqual(both.returncode, 1)
        self.assertIn("1 of 2", both.stdout)
        self.assertIn("in no figure of optimized: 8x64", both.stdout)


if __name__ == "__main__":
    unittest.main()
