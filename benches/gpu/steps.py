#!/usr/bin/env python3
"""Step times and memory of a plan that `autoplan export` wrote for DeepSpeed or Accelerate, on one GPU:

    python3 benches/gpu/steps.py FOLDER [--steps 9]

FOLDER holds the exported files. Their train.py runs as it is, but for the number of its steps. Prints one line of JSON: the
median of the steps after the third, and the peaks of memory after the first, in bytes. results/own/one-h100.csv was made about so.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

WARM_UP = 3


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--steps", type=int, default=9)
    arguments = arguments.parse_args()
    alone = dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1, LOCAL_WORLD_SIZE=1, MASTER_ADDR="localhost", MASTER_PORT=29511)
    os.environ.update({name: str(value) for name, value in alone.items()})
    path = arguments.folder / "train.py"
    text, found = re.subn(r"^STEPS = \d+$", f"STEPS = {arguments.steps}", path.read_text(), flags=re.M)
    if found != 1:
        sys.exit(f"{path}: expected one line `STEPS = N`, found {found}")
    deepspeed = arguments.folder / "ds_config.json"
    sys.argv = ["train.py", *(["--deepspeed_config", str(deepspeed)] if deepspeed.exists() else [])]
    if not deepspeed.exists():
        # As launch.sh and `accelerate launch` do; DeepSpeed's train.py sets the first itself.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        settings = (arguments.folder / "accelerate.yaml").read_text()
        os.environ["ACCELERATE_MIXED_PRECISION"] = re.search(r"^mixed_precision: (\w+)$", settings, re.M)[1]
    import torch

    ends = []

    def after_a_step(*said, **_):
        """Stands for `print`: the script says something at the end of every step."""
        if not (said and str(said[0]).startswith("step ")):
            print(*said)
            return
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        if len(ends) == 1:
            torch.cuda.reset_peak_memory_stats()

    names = {"__name__": "exported", "__file__": str(path), "print": after_a_step}
    if not deepspeed.exists():
        from accelerate import Accelerator

        Accelerator.print = lambda self, *said, **_: after_a_step(*said)
    exec(compile(text, str(path), "exec"), names)
    names["main"]()
    steps = [later - earlier for earlier, later in zip(ends, ends[1:])][WARM_UP - 1 :]
    peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    print(json.dumps({"step_s": statistics.median(steps), "steps": len(steps), **peaks}))


if __name__ == "__main__":
    main()
