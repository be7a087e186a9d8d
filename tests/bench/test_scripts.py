"""Every script answers --help: its usage on stdout, nothing run, nothing changed."""

import subprocess
import unittest

import tools


class Help(unittest.TestCase):
    def test_all(self):
        scripts = sorted((tools.ROOT / "scripts").iterdir())
        self.assertGreater(len(scripts), 5)
        for script in scripts:
            with self.subTest(script=script.name):
                # From elsewhere: a script may not depend on where it is called.
                done = subprocess.run([script, "--help"], capture_output=True, text=True, cwd="/",
                                      timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stderr, "")
                self.assertIn("scripts/" + script.name, done.stdout)
                self.assertGreater(len(done.stdout.splitlines()), 1)
                self.assertNotIn("set -eu", done.stdout)


if __name__ == "__main__":
    unittest.main()
