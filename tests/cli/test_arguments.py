"""Wrong arguments: one line on stderr that names argument, value and what is allowed; exit code 2."""

import re
import unittest

from kda import BINARY, kda, kda_json

ISAS = kda_json("info")["isas"]
HAS_AVX2 = any(isa["isa"] == "avx2" and isa["available"] for isa in ISAS)
COMMANDS = ("info", "run", "verify", "bench", "ladder", "demo")


class Arguments(unittest.TestCase):
    def refused(self, arguments, *words):
        process = kda(*arguments)
        self.assertEqual(process.returncode, 2, (arguments, process.stderr, process.stdout))
        self.assertEqual(len(process.stderr.splitlines()), 1, process.stderr)
        self.assertEqual(process.stdout, "")
        for word in words:
            self.assertIn(word, process.stderr)

    def test_one_clear_line(self):
        for arguments, words in (
                ([], ("command", "bench")),
                (["benhc"], ("benhc",)),
                (["bench", "--foo"], ("--foo",)),
                (["run"], ("--input",)),
                (["run", "--input", "x"], ("--output",)),
                (["run", "--input", "/no/such", "--output", "y"], ("--input", "/no/such")),
                (["verify", "--gate", "soft"], ("--gate", "soft", "log, bounded, softplus")),
                (["verify", "--threads", "-1"], ("--threads", "-1", "0 to 1024")),
                (["verify", "--threads", "two"], ("--threads", "two")),
                (["verify", "--threads", "99999999999999999999"], ("--threads",)),
                (["verify", "--isa", "mmx"], ("--isa", "mmx", "avx2")),
                (["verify", "--rung", "best"], ("--rung", "best", "original")),
                (["verify", "--rung", "port,original"], ("--rung",)),
                (["verify", "--solver", "lu"], ("--solver", "lu", "neumann64")),
                (["verify", "--backend", "gpu"], ("--backend", "gpu", "reference")),
                (["verify", "--set", "fuse"], ("--set", "fuse", "flat_grid")),
                (["verify", "--set", "fuse=2"], ("--set", "fuse=2")),
                (["verify", "--set", "fsue=1"], ("--set", "fsue=1", "safe_gate")),
                (["verify", "--gate", "bounded", "--lower-bound", "nan"],
                 ("--lower-bound", "nan")),
                (["verify", "--gate", "bounded", "--lower-bound", "1"],
                 ("--lower-bound", "1", "to 0")),
                (["verify", "--gate", "log", "--lower-bound", "-5"], ("--lower-bound", "log")),
                (["verify", "--scale", "inf"], ("--scale", "inf")),
                (["verify", "--scale", "1e300"], (": --scale: value is 1e+300",)),
                (["verify", "--decode", "--solver", "block"], (": --solver: block is forced",)),
                (["bench", "--decode", "--solver", "block"], (": --solver: block is forced",)),
                (["verify", "--backend", "reference", "--isa", "avx2"],
                 (": --isa: avx2 is forced", "reference")) if HAS_AVX2 else
                (["verify", "--backend", "gpu"], ("--backend",)),
                (["verify", "--state-layout", "qk"], ("--state-layout", "qk", "kv, vk")),
                (["verify", "--out-dtype", "int8"], ("--out-dtype", "int8", "bf16")),
                (["verify", "--checkpoint-every", "0"], ("--checkpoint-every", "0")),
                (["verify", "--dim-k", "257"], ("--dim-k", "257", "1 to 256")),
                (["verify", "--input", "x", "--batch", "3"], ("--batch", "--input")),
                (["verify", "--tolerance", "0"], ("--tolerance", "'0'", "> 0")),
                (["verify", "--tolerance", "nan"], ("--tolerance", "'nan'", "> 0")),
                (["verify", "--save-input", "/no/such"], ("--save-input", "/no/such")),
                (["verify", "--set", "head_block=1", "--set", "fuse=0"],
                 ("--set", "head_block=1", "needs fuse")),
                (["verify", "--rung", "original", "--set", "head_block=1"],
                 ("head_block=1", "needs safe_gate,fuse")),
                (["verify", "--decode", "--set", "flat_grid=1"], ("flat_grid=1", "token by token")),
                (["verify", "--backend", "reference", "--set", "fuse=1"],
                 ("fuse=1", "token by token")),
                (["verify", "--batch", "1", "--heads", "1", "--set", "head_block=1", "--threads",
                  "1"], ("head_block=1", "1 value head and 1 sequence make", "1 thread")),
                (["bench", "--set", "head_block=1", "--set", "fuse=0", "--seqlen", "1"],
                 ("--set", "head_block=1", "needs fuse")),
                (["bench", "--time-limit", "0"], ("--time-limit", "'0'", "> 0")),
                (["demo", "--time-limit", "-1"], ("--time-limit", "'-1'", "> 0")),
                (["bench", "--batches", "3"], ("--batches", "3", "sharegpt")),
                (["bench", "--batches", "3", "--heads", "1", "--seqlen", "10"],
                 ("--batches", "3", "sharegpt")),
                (["bench", "--workload", "grid", "--batches", "3"], ("--batches", "sharegpt")),
                (["bench", "--decode", "--rung", "original,port"], ("--rung", "decode")),
                (["bench", "--backend", "reference", "--rung", "original,port"],
                 ("--rung", "reference")),
                (["info", "--json", "--limits"], ("--json", "--limits")),
                (["bench", "--workload", "small"], ("--workload", "small", "headline")),
                (["bench", "--workload", "grid", "--batch", "3"], ("--batch", "--workload")),
                (["bench", "--rung", "port,port"], ("port", "twice")),
                (["bench", "--rung", "port,prot"], ("--rung", "prot")),
                (["bench", "--lengths", "3,x"], ("--lengths", "x")),
                (["bench", "--batch", "65536", "--seqlen", "16777216"],
                 ("--batch, --seqlen", "1099511627776 tokens", "at most 137438953408")),
                (["verify", "--batch", "8191", "--seqlen", "16777216", "--heads", "1024"],
                 ("--heads", "at most 17592186044416")),
                (["bench", "--heads", "0"], ("--heads", "0", "1 to 1024")),
                (["bench", "--batch", "1.5"], ("--batch", "1.5")),
                (["bench", "--repeat", "0"], ("--repeat", "0")),
                (["ladder", "--lengths", "0"], ("--lengths", "0")),
                (["demo", "extra"], ("extra",))):
            with self.subTest(arguments=arguments):
                self.refused(arguments, *words)

    # Exit code 1, not 2: another machine could. Before anything is made or said on stdout.
    def test_an_instruction_set_this_machine_lacks(self):
        lacking = [isa["isa"] for isa in ISAS if not isa["available"]]
        self.assertTrue(lacking, "no machine has those of two architectures")
        for isa in lacking:
            for command in (["verify"], ["bench", "--workload", "k3"], ["ladder"], ["demo"],
                            ["bench", "--isa", "auto," + isa]):
                arguments = command if "--isa" in command else command + ["--isa", isa]
                with self.subTest(arguments=arguments):
                    process = kda(*arguments)
                    self.assertEqual(process.returncode, 1, process.stderr)
                    self.assertEqual(process.stdout, "")
                    self.assertIn(": --isa: %s is forced, but " % isa, process.stderr)
                    self.assertNotIn("--help", process.stderr)

    # Inputs of 10^12 bytes that are never made: the refusal comes first.
    def test_options_are_checked_before_inputs_are_made(self):
        for command in ("bench", "verify"):
            self.refused([command, "--batch", 60000, "--seqlen", 1000, "--heads", 64, "--decode",
                          "--set", "fuse=1"], "fuse=1", "token by token")

    def test_inputs_of_a_file_are_not_generated(self):
        for option, value in (("--batch", 1), ("--seqlen", 1), ("--heads", 1), ("--seed", 1),
                              ("--values", "mix"), ("--dtype", "bf16"), ("--gate-dtype", "bf16"),
                              ("--dim-k", 1), ("--dim-v", 1), ("--group", 1)):
            with self.subTest(option=option):
                self.refused(["verify", "--input", "x", option, value], "--input", option)

    def test_missing_values_are_asked_for_by_name(self):
        for command in COMMANDS:
            text = kda(command, "--help").stdout
            for option in re.findall(r"^  (--[a-z-]+) [A-Z{]", text, re.M):
                with self.subTest(command=command, option=option):
                    self.refused([command, option], option, "a value is missing")
                    process = kda(command, option)
                    self.assertNotRegex(process.stderr, "INT|TEXT|FLOAT|:N")

    def test_what_is_not_expected_is_in_order(self):
        self.refused(["ladder", "--rung", "original"], "--rung original")
        self.refused(["bench", "--one", "2", "--three"], "--one 2 --three")

    def test_help_is_named_as_it_was_called(self):
        self.refused(["bench", "--foo"], f"see {BINARY} bench --help")
        self.refused(["foo"], f"see {BINARY} --help")

    def test_help_says_what_is_so(self):
        run, verify = (kda(command, "--help").stdout for command in ("run", "verify"))
        self.assertIn("the file's, else log", run)
        self.assertIn("bounded for inputs made here", verify)
        for command in ("verify", "bench"):
            self.assertIn("KDA_MAX_ISA", kda(command, "--help").stdout)
        for text in (kda("--help").stdout, kda("info", "--help").stdout):
            self.assertIn("KDA_MAX_ISA", text)
        self.assertRegex(kda("--help").stdout, r"Exit codes:\n  0 .*\n  1 .*lacks the instruction set")

    # What a help points to is there.
    def test_help_leads_somewhere(self):
        self.assertIn("kda info --switches", kda("verify", "--help").stdout)
        self.assertIn("  kda info --switches", kda("info", "--help").stdout)
        text = kda("info").stdout
        for rung in re.search(r"--rung \{(.*?)\}", kda("tpu", "predict", "--help").stdout,
                              re.S)[1].split("|"):
            self.assertRegex(text, r"\b%s\b" % rung.strip())

    def test_help_teaches(self):
        top = kda("--help")
        self.assertEqual(top.returncode, 0)
        for command in COMMANDS:
            self.assertIn(command, top.stdout)
            process = kda(command, "--help")
            self.assertEqual(process.returncode, 0)
            self.assertIn(f"  kda {command}", process.stdout, "an example")
            self.assertEqual(process.stderr, "")

    def test_version(self):
        process = kda("--version")
        self.assertEqual(process.returncode, 0)
        self.assertRegex(process.stdout, r"^kda \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    unittest.main()
