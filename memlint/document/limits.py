"""Bounds on untrusted text, so that no file costs a second or much memory; all far above any real training config.

Every bound is on what the readers would have to build, and is checked while it is built, not afterwards. The widest
real files seen: 130 kB of YAML (OLMo's list of data shards), and an HF ``config.json`` with 21,841 ImageNet labels,
each twice.
"""

from __future__ import annotations

MAX_BYTES = 2 * 1024 * 1024
"""Bytes of one file."""

MAX_TOML_BYTES = 160 * 1024
"""Bytes of one TOML file: tomllib is plain Python and reads 200 to 1000 kB a second."""

MAX_PLAIN_YAML_BYTES = 128 * 1024
"""Bytes of one YAML file where PyYAML came without its C reader: the plain Python one reads about 300 kB a second."""

MAX_VALUES = 60_000
"""Values of one JSON or TOML file."""

MAX_SLOW_VALUES = 20_000
"""Values of a JSON file that only the plain Python reader can read (comments, keys given twice), which takes up to ten
microseconds for each."""

MAX_YAML_NODES = 40_000
"""Keys and values of one YAML file, aliases and merge keys expanded."""

MAX_DEPTH = 100
"""Mappings and lists inside one another; far below the recursion limit of everything that walks the values later."""

MAX_DOCUMENTS = 200
"""Documents in one YAML file."""

MAX_NUMBER_LENGTH = 3500
"""Characters of one number. In base 16 that is 4214 decimal digits: just below the 4300 above which Python refuses to
convert an integer from or to text (``sys.int_info.default_max_str_digits``), as a later message would."""

MAX_PROBLEMS = 50
"""Problems kept for one document; the first say enough."""

MAX_TAG_DIRECTIVES = 100
"""``%TAG`` directives in one YAML file: libyaml compares each with all before it."""
