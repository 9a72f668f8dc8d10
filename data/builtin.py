"""Built-in sources: Tandem's generators, and the seed that each gets.

Apart from `data.sources`, so that an edit of how files are read does not concern what only asks for that seed.
"""

import hashlib
from collections.abc import Iterator

from config.errors import UserError
from data.config import Source
from data.conversation import Document


def generated(source: Source, mixture: str, seed: int) -> Iterator[Document]:
    """The documents of a source with a `builtin`. Raises UserError for a name that no generator has."""
    from data.synthetic.corpus import BUILTIN

    if source.builtin not in BUILTIN:
        raise UserError(f"no built-in source {source.builtin!r}; there are {', '.join(sorted(BUILTIN))}")
    return BUILTIN[source.builtin](source.count, builtin_seed(source, mixture, seed))


def builtin_seed(source: Source, mixture: str, seed: int) -> int:
    """The generator's seed: one named in two mixtures writes different documents for each."""
    name = f"{seed}/{mixture}/{source.builtin}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
