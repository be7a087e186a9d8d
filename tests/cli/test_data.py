"""The shipped length lists have the published statistics."""

import math
import os
import unittest

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "data")


def lines(name):
    with open(os.path.join(DATA, name), encoding="ascii") as file:
        return file.read().splitlines()[1:]


class Data(unittest.TestCase):
    def test_counts(self):
        counts = [tuple(map(int, line.split(","))) for line in
                  lines("sharegpt_k3_length_counts.csv")]
        lengths = [length for length, count in counts for _ in range(count)]
        self.assertEqual(len(lengths), 52229)
        mean = sum(lengths) / len(lengths)
        self.assertAlmostEqual(mean, 108.20, places=2)
        sd = math.sqrt(sum((x - mean) ** 2 for x in lengths) / len(lengths))
        self.assertAlmostEqual(sd, 189.81, places=2)
        for percent, value in ((10, 8), (25, 13), (50, 28), (75, 94), (90, 336), (95, 571),
                               (99, 928), (99.9, 1016), (100, 1024)):
            at = percent / 100 * (len(lengths) - 1)
            self.assertAlmostEqual(lengths[int(at)], value, delta=0.5)
        bins = [sum(low <= x <= high for x in lengths) for low, high in
                ((4, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 256), (257, 512),
                 (513, 1024))]
        self.assertEqual(bins, [5720, 11379, 10900, 7659, 5848, 4101, 3531, 3091])

    def test_batches(self):
        known = {int(line.split(",")[0]) for line in lines("sharegpt_k3_length_counts.csv")}
        batches = {int(line.split(",")[0]): list(map(int, line.split(",")[1].split()))
                   for line in lines("sharegpt_k3_batches.csv")}
        self.assertEqual(sorted(batches), [1, 2, 4, 8, 16, 32, 64])
        for lengths in batches.values():
            self.assertEqual(len(lengths), 100)
            self.assertTrue(set(lengths) <= known)


if __name__ == "__main__":
    unittest.main()
