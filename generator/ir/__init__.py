"""The intermediate representation: a captured call as plain data, with no object of the framework in it."""

from generator.ir.dump import dump, load
from generator.ir.graph import Graph, GraphError
from generator.ir.node import Arg, Location, Node, Size, ValueRef, as_extent, references
from generator.ir.value import ITEM_SIZES, Extent, Value, ValueKind, dense_strides, product

__all__ = [
    "ITEM_SIZES",
    "Arg",
    "Extent",
    "Graph",
    "GraphError",
    "Location",
    "Node",
    "Size",
    "Value",
    "ValueKind",
    "ValueRef",
    "as_extent",
    "dense_strides",
    "dump",
    "load",
    "product",
    "references",
]
