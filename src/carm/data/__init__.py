"""Data sets in their standard formats on disk, and streams of tasks made from them."""

from carm.data.decode import BadImage, Decoder
from carm.data.delivery import Offline, Online, StreamBuffer, stream_of
from carm.data.registry import load, names
from carm.data.source import ArraySplit, Batch, EncodedSplit, Source, Split
from carm.data.stream import Stream, Task, class_order, split_by_class

__all__ = [
    "ArraySplit",
    "BadImage",
    "Batch",
    "Decoder",
    "EncodedSplit",
    "Offline",
    "Online",
    "Source",
    "Split",
    "Stream",
    "StreamBuffer",
    "Task",
    "class_order",
    "load",
    "names",
    "split_by_class",
    "stream_of",
]
