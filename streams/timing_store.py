"""How a partition's RocksDB is opened. What all of a process's partitions hold in memory is bounded for them together.

So a million timers weigh on the disk: blocks and what finds them are in one cache, what was just written is in buffers
of one size, and neither grows with the partitions or with what they hold.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Options,
    Rdict,
    ReadOptions,
    WriteBufferManager,
    WriteOptions,
)

log = logging.getLogger(__name__)

CACHE_BYTES = 64 << 20  # blocks, of a process
BUFFERS_BYTES = 64 << 20  # what is written and not in a file yet, of a process
_BUFFER_BYTES = 8 << 20  # the same, of a partition: twice that while the first is being written
_ARENA_BYTES = 64 << 10  # a partition without news holds little more
_BLOOM_BITS = 10


def open_store(folder: Path) -> Rdict:
    """The database in the folder; an empty one in place of one that is damaged, for all of it is in the ledger too."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return Rdict(str(folder), _options())
    except Exception as error:  # rocksdict raises nothing narrower
        if "lock" in str(error).lower():  # somebody has it open
            raise
        log.exception("the timing state in %s cannot be read, starting an empty one", folder)
        shutil.rmtree(folder)
        folder.mkdir()
        return Rdict(str(folder), _options())


def iterate(db: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Entries from start on and before end, in order."""
    bound = ReadOptions()
    bound.set_iterate_upper_bound(end)
    entries = db.iter(bound)
    entries.seek(start)
    while entries.valid():
        yield entries.key(), entries.value()
        entries.next()


def unlogged() -> WriteOptions:
    """For what is written again from its beginning after a crash: durable once it has been flushed."""
    options = WriteOptions()
    options.disable_wal = True
    return options


def hold_compaction(db: Rdict, hold: bool) -> None:
    """While a lot is written at once it is not sorted again and again; one compaction does it afterwards."""
    db.set_options({"disable_auto_compactions": str(hold).lower()})


def _options() -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_arena_block_size(_ARENA_BYTES)
    options.set_write_buffer_manager(_buffers())
    options.set_block_based_table_factory(_tables())
    options.set_skip_stats_update_on_db_open(True)
    options.set_keep_log_file_num(2)
    options.set_max_background_jobs(1)
    return options


@cache
def _buffers() -> WriteBufferManager:
    return WriteBufferManager(BUFFERS_BYTES, False)


@cache
def _tables() -> BlockBasedOptions:
    # The filter answers for runs that are new. Filter and index are read in parts: a look-up needs little of them.
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(CACHE_BYTES))
    tables.set_bloom_filter(_BLOOM_BITS, False)
    tables.set_index_type(BlockBasedIndexType.two_level_index_search())
    tables.set_partition_filters(True)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    tables.set_format_version(5)
    return tables
