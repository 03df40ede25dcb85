"""A converted graph, for one image and with one output, becomes that of the contract.

The schema of these files, a FlatBuffer, is
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from collections import Counter
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils
from numpy.typing import NDArray

from jaxtrain.formats.contract import LOGITS, PROBABILITIES

SIGNATURE: Final = "serving_default"
_OPERATORS: Final = schema.BuiltinOperator
_NAMES: Final = {
    number: name for name, number in vars(_OPERATORS).items() if not name.startswith("_")
}


class Graph:
    """A graph in memory; its one input is an example, its one output float32 logits."""

    def __init__(self, content: bytes) -> None:
        self._model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
        self._graph = self._model.subgraphs[0]

    def content(self) -> bytes:
        """The bytes of a file."""
        return bytes(flatbuffer_utils.convert_object_to_bytearray(self._model))

    def operators(self) -> Counter[str]:
        """How often each operator is used, by its name in the schema."""
        return Counter(self._name(operator) for operator in self._graph.operators)

    def divides_integers(self) -> bool:
        """Whether it divides by quantized values, which ends the process where one rounds to 0."""
        return any(
            self._name(operator) == "DIV"
            and self._graph.tensors[operator.outputs[0]].type == schema.TensorType.INT8
            for operator in self._graph.operators
        )

    def add_probabilities(self, name_of_input: str) -> None:
        """Adds a softmax in float32, whatever the network computes in; names inputs and outputs.

        A quantized one would give probabilities in steps of 1/256.
        """
        (image,) = self._graph.inputs
        (logits,) = self._graph.outputs
        probabilities = self._add_tensor(
            self._graph.tensors[logits].shape, schema.TensorType.FLOAT32
        )
        softmax = schema.OperatorT()
        softmax.opcodeIndex = self._code(_OPERATORS.SOFTMAX)
        softmax.inputs, softmax.outputs = [logits], [probabilities]
        softmax.builtinOptionsType = schema.BuiltinOptions.SoftmaxOptions
        softmax.builtinOptions = schema.SoftmaxOptionsT()
        softmax.builtinOptions.beta = 1.0
        self._graph.operators.append(softmax)
        self._graph.outputs = [logits, probabilities]
        named = {name_of_input: image, LOGITS: logits, PROBABILITIES: probabilities}
        for name, index in named.items():
            self._graph.tensors[index].name = name.encode()
        signature = schema.SignatureDefT()
        signature.signatureKey = SIGNATURE.encode()
        signature.inputs = [_entry(name_of_input, image)]
        signature.outputs = [_entry(LOGITS, logits), _entry(PROBABILITIES, probabilities)]
        self._model.signatureDefs = [signature]

    def free_batch(self) -> None:
        """Frees the first dimension, which is 1, of all that depends on the image.

        Operators that are told a shape are told it without that dimension. Whether that is all
        that depends on the size of a batch, only a run can tell.
        """
        of_image = set(self._graph.inputs)
        for operator in self._graph.operators:
            if of_image.intersection(operator.inputs):
                of_image.update(operator.outputs)
                before, after = (
                    list(self._graph.tensors[indices[0]].shape)
                    for indices in (operator.inputs, operator.outputs)
                )
                if before and after:
                    self._free(operator, before, after)
        for index in of_image:
            tensor = self._graph.tensors[index]
            if len(tensor.shape) and tensor.shape[0] == 1:
                tensor.shapeSignature = [-1, *tensor.shape[1:]]

    def _free(self, operator: Any, before: list[int], after: list[int]) -> None:
        free = [-1, *after[1:]]
        whole = before[0] == after[0] == 1
        match self._name(operator):
            case "RESHAPE":
                # The batch comes first, so also where it is merged with others, or taken out.
                operator.inputs[1] = self._add_constant(free)
                operator.builtinOptionsType = schema.BuiltinOptions.ReshapeOptions
                operator.builtinOptions = schema.ReshapeOptionsT()
                operator.builtinOptions.newShape = free
            case "BROADCAST_TO" if whole and len(before) == len(after):
                operator.inputs[1] = self._add_constant(np.floor_divide(after, before))
                operator.opcodeIndex = self._code(_OPERATORS.TILE)
                operator.builtinOptionsType = schema.BuiltinOptions.TileOptions
                operator.builtinOptions = schema.TileOptionsT()
            case "SLICE" if whole:
                operator.inputs[2] = self._add_constant(free)
            case "STRIDED_SLICE" if whole:
                operator.builtinOptions.beginMask |= 1
                operator.builtinOptions.endMask |= 1

    def _name(self, operator: Any) -> str:
        code = self._model.operatorCodes[operator.opcodeIndex]
        # The older field is one byte.
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        return str(_NAMES[number])

    def _code(self, number: int) -> int:
        """The index of an operator's code, which is added if it is new here."""
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = number
        code.version = 1
        self._model.operatorCodes.append(code)
        return len(self._model.operatorCodes) - 1

    def _add_tensor(self, shape: Any, dtype: int, buffer: int = 0) -> int:
        # Buffer 0 is that of tensors without values.
        tensor = schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer, tensor.hasRank = shape, dtype, buffer, True
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _add_constant(self, values: Any) -> int:
        array: NDArray[np.int32] = np.asarray(values, np.int32)
        buffer = schema.BufferT()
        buffer.data = array.view(np.uint8)
        self._model.buffers.append(buffer)
        number = len(self._model.buffers) - 1
        return self._add_tensor(array.shape, schema.TensorType.INT32, number)


def _entry(name: str, tensor: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), tensor
    return entry
