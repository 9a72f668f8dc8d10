"""Stage resolve: the profile with inheritance and overrides applied, and a list of the input files with their hashes.

Runs at every `dvc repro`, so that an edited parent profile or text file is noticed; it has to be quick, and imports
nothing heavy. The overrides of params.yaml apply only to the profile that it names.

    python -m stages.resolve [profile]
"""

import sys
from dataclasses import fields
from pathlib import Path

from config.errors import UserError, run_main
from config.files import write_atomic, write_json
from config.paths import RunPaths
from config.profile import read_params, resolve, to_yaml
from data.inventory import take
from stages.profile import Profile, check


def main() -> None:
    if len(sys.argv) > 2:
        raise UserError("usage: python -m stages.resolve [profile]")
    root = Path()
    named, overrides = read_params(root)
    name = sys.argv[1] if len(sys.argv) == 2 else named
    resolved = resolve(name, root, overrides if name == named else None)
    profile = check(resolved)
    # DVC fails on a tracked section that is absent, so those left to their defaults are written too.
    values = {field.name: {} for field in fields(Profile)} | resolved.values
    paths = RunPaths(name, root)
    sources = take(profile.data, paths.work / "file-hashes.json")
    write_atomic(paths.resolved, to_yaml(values))
    write_json(paths.sources, sources)


if __name__ == "__main__":
    run_main(main)
