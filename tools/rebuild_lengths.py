#!/usr/bin/env python3
"""Makes data/sharegpt_k3_length_counts.csv again from the original files, for who has them.

    pip install tiktoken
    tools/rebuild_lengths.py --sharegpt ShareGPT_V3_unfiltered_cleaned_split.json \\
        --tokenizer tiktoken.model --output counts.csv

The first human turn of each record whose first two turns are human, then gpt, is tokenised as it
is. It is kept where prompt and answer have at least 4 tokens, the prompt at most 1024 and both
together at most 2048. Both files are refused when their SHA-256 is not the published one, and the
result is compared with the list shipped in data/.
"""

import argparse
import base64
import collections
import csv
import hashlib
import json
import pathlib
import sys

SHAREGPT_SHA256 = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"
TOKENIZER_SHA256 = "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"
SHIPPED = pathlib.Path(__file__).parent.parent / "data" / "sharegpt_k3_length_counts.csv"

# How Moonshot's tokenizer splits text before merging bytes (tokenization_kimi.py of Kimi K2/K3).
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def checked_bytes(path, sha256):
    data = pathlib.Path(path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        sys.exit(f"{path}: SHA-256 {found} is not the published {sha256}")
    return data


def load_tokenizer(data):
    import tiktoken

    ranks = {}
    for line in data.splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding(name="kimi", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={})


def prompt_lengths(records, count_tokens):
    """The lengths that are kept, in the order of the records."""
    for record in records:
        turns = record.get("conversations", [])
        if len(turns) < 2 or turns[0]["from"] != "human" or turns[1]["from"] != "gpt":
            continue
        prompt, answer = count_tokens(turns[0]["value"]), count_tokens(turns[1]["value"])
        if prompt >= 4 and answer >= 4 and prompt <= 1024 and prompt + answer <= 2048:
            yield prompt


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sharegpt", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()

    encoding = load_tokenizer(checked_bytes(arguments.tokenizer, TOKENIZER_SHA256))
    records = json.loads(checked_bytes(arguments.sharegpt, SHAREGPT_SHA256))
    counts = collections.Counter(
        prompt_lengths(records, lambda text: len(encoding.encode_ordinary(text))))
    with open(arguments.output, "w", encoding="ascii", newline="") as file:
        file.write("tokens,count\n")
        for length, count in sorted(counts.items()):
            file.write(f"{length},{count}\n")
    with open(SHIPPED, encoding="ascii") as file:
        shipped = {int(row["tokens"]): int(row["count"]) for row in csv.DictReader(file)}
    total = sum(counts.values())
    if dict(counts) != shipped:
        sys.exit(f"{arguments.output}: {total} lengths, not the {sum(shipped.values())} shipped")
    print(f"{arguments.output}: {total} lengths, the very list that is shipped")


if __name__ == "__main__":
    main()
