"""GPT-2's tokenizer, to compare compression with, where its two files are on this machine; none is downloaded."""

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from config.paths import ROOT

SHARED = ROOT.parent / "shared" / "data" / "tokenizer"
NAMES = (("gpt2_encoder.json", "gpt2_vocab.bpe"), ("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))


def load(cache_folder: Path) -> Backend | str:
    """The tokenizer from `../shared/data/tokenizer` or the folder `gpt2` of the cache folder; or why there is none."""
    folders = (SHARED, cache_folder / "gpt2")
    for folder in folders:
        for vocabulary, merges in (map(folder.joinpath, names) for names in NAMES):
            if vocabulary.exists() and merges.exists():
                backend = Backend(models.BPE.from_file(str(vocabulary), str(merges)))
                backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
                return backend
    return f"GPT-2's tokenizer is not here: put its encoder.json and vocab.bpe into {folders[1]} to compare with it"
