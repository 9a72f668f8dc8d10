"""Stage tokenize: train the byte-level BPE on a sample of what the model will read."""

from config.errors import run_main
from config.profile import read_section
from data.config import DataConfig, TokenizerConfig
from data.manifest import resolve_folder
from data.mixture import sample_texts
from data.tokenizer import Tokenizer
from stages.process import start


def main() -> None:
    paths = start("tokenize")
    config = read_section(paths, "tokenizer", TokenizerConfig)
    data = read_section(paths, "data", DataConfig)
    texts = sample_texts(data, config.sample_megabytes, resolve_folder(data.cache_folder))
    tokenizer = Tokenizer.train(texts, config.vocab_size)
    paths.tokenizer.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(paths.tokenizer)
    size = sum(len(text.encode()) for text in texts)
    tokens = sum(map(len, tokenizer.encode_batch(texts)))
    print(f"tokenizer: {tokenizer.vocab_size:,} tokens from {size / 1e6:,.1f} MB, {size / tokens:.2f} bytes a token")


if __name__ == "__main__":
    run_main(main)
