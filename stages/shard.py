"""Stage shard: turn the sources of the three mixtures into shards of token rows, and write their manifests."""

from pathlib import Path

from config.errors import run_main
from config.files import sha256_of, write_json
from config.paths import TRAINING_STAGES, RunPaths
from config.profile import read_section
from data.config import DataConfig
from data.manifest import read_manifest, resolve_folder
from data.shard_files import prune
from data.shards import build
from data.tokenizer import Tokenizer
from stages.process import start

SPARE_BYTES = 20e9  # of shards that no profile's manifest names any more; they serve when a setting is set back


def main() -> None:
    paths = start("shard")
    data = read_section(paths, "data", DataConfig)
    tokenizer = Tokenizer.load(paths.tokenizer)
    for mixture in TRAINING_STAGES:
        manifest = build(mixture, getattr(data, mixture), tokenizer, data, paths.manifest(mixture), paths.work)
        train = manifest["splits"]["train"]
        print(f"{mixture}: {train['rows']:,} rows of {data.context + 1} tokens")
    hashes = {mixture: sha256_of(paths.manifest(mixture)) for mixture in TRAINING_STAGES}
    write_json(paths.run / "shards" / "manifest.json", hashes)
    everyone = [RunPaths(run.name).manifest(mixture) for run in Path("runs").iterdir() for mixture in TRAINING_STAGES]
    prune(resolve_folder(data.shard_folder), map(read_manifest, filter(Path.exists, everyone)), SPARE_BYTES)


if __name__ == "__main__":
    run_main(main)
