"""Random histories in virtual time, as many as you like: `python -m tests.proof --steps 100000 --seed 1`.

A failing history is made shorter, and said as a command that plays it again: `--replay FILE` (or `--seed N --runs 1`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path

from tests.proof.virtual.play import Played, play, shorter


def main() -> int:
    args = _arguments()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are walked in an order that this decides: a seed has to mean one history.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.proof", *sys.argv[1:]])
    if args.replay:
        kept = json.loads(Path(args.replay).read_text())
        return _tell(play(kept["seed"], actions=[tuple(one) for one in kept["actions"]]))
    begin = time.perf_counter()
    steps = records = runs = 0
    virtual = 0.0
    seed = args.seed
    while (steps < args.steps if args.runs is None else runs < args.runs):
        played = play(seed, args.length)
        steps, records, runs = steps + len(played.actions), records + played.events, runs + 1
        virtual += played.seconds
        spent = time.perf_counter() - begin
        print(
            f"\r{runs} histories, {steps} steps, {records} records, {virtual / 3600:.1f} h of virtual time in {spent:.0f} s "
            f"({steps / spent:.0f} steps/s), seed {seed}", end="", flush=True,
        )  # fmt: skip
        if played.failed:
            print()
            return _report(played, Path(args.keep))
        seed += 1
    print("\nno breach")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="steps in all")
    parser.add_argument("--seed", type=int, default=0, help="of the first history; the next one has the next")
    parser.add_argument("--length", type=int, default=100, help="steps of one history")
    parser.add_argument("--runs", type=int, help="so many histories instead of --steps")
    parser.add_argument("--keep", default="failed-history.json", help="where a failing history is written")
    parser.add_argument("--replay", help="play a kept history")
    return parser.parse_args()


def _report(played: Played, keep: Path) -> int:
    print(f"seed {played.seed} fails; making it shorter …")
    least = shorter(played)
    keep.write_text(json.dumps({"seed": least.seed, "actions": least.actions}))
    print(f"{len(least.actions)} actions are left: python -m tests.proof --replay {keep}")
    return _tell(least)


def _tell(played: Played) -> int:
    for action in played.actions:
        print("  ", *action)
    if played.error is not None:
        traceback.print_exception(played.error)
    for breach in played.breaches[:20]:
        print(breach)
    print("fails" if played.failed else "no breach")
    return int(played.failed)


if __name__ == "__main__":
    sys.exit(main())
