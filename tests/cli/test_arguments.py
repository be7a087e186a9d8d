"""Wrong arguments: one line on stderr that names argument, value and what is allowed; exit code 2."""

import unittest

from kda import kda

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
                (["verify", "--gate", "bounded", "--lower-bound", "1"], ("lower_bound", "1")),
                (["verify", "--gate", "log", "--lower-bound", "-5"], ("--lower-bound", "log")),
                (["verify", "--scale", "inf"], ("--scale", "inf")),
                (["verify", "--state-layout", "qk"], ("--state-layout", "qk", "kv, vk")),
                (["verify", "--out-dtype", "int8"], ("--out-dtype", "int8", "bf16")),
                (["verify", "--checkpoint-every", "0"], ("--checkpoint-every", "0")),
                (["verify", "--dim-k", "257"], ("--dim-k", "257", "1 to 256")),
                (["verify", "--input", "x", "--batch", "3"], ("--batch", "--input")),
                (["bench", "--workload", "small"], ("--workload", "small", "headline")),
                (["bench", "--workload", "grid", "--batch", "3"], ("--batch", "--workload")),
                (["bench", "--rung", "port,port"], ("port", "twice")),
                (["bench", "--rung", "port,prot"], ("--rung", "prot")),
                (["bench", "--lengths", "3,x"], ("--lengths", "x")),
                (["bench", "--heads", "0"], ("--heads", "0", "1 to 1024")),
                (["bench", "--batch", "1.5"], ("--batch", "1.5")),
                (["bench", "--repeat", "0"], ("--repeat", "0")),
                (["ladder", "--lengths", "0"], ("--lengths", "0")),
                (["demo", "extra"], ("extra",))):
            with self.subTest(arguments=arguments):
                self.refused(arguments, *words)

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
