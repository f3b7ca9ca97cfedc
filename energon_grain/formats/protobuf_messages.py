"""Messages of protocol buffers, declared where they are read: no generated code, no compiler."""

from __future__ import annotations

from typing import Any

Field = tuple[str, str]
"""Name, and type: a scalar of protobuf (`int64`) or a message of the same package; with `*` behind it, many."""


def message_types(package: str, messages: dict[str, list[Field]], *, oneof: str = "") -> dict[str, Any]:
    """Make the classes of some messages of syntax `proto3`, whose fields are numbered from 1 on as they are listed.

    Messages of the same names that others declare (TensorFlow its Example) do not get in the way.

    Args:
        package: The name of the package.
        messages: Their fields by name, each message behind those that it holds.
        oneof: The message of whose fields only one is there at a time; its choice is called `kind`.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field: Any = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for title, fields in messages.items():
        message = file.message_type.add(name=title)
        if title == oneof:
            message.oneof_decl.add(name="kind")
        for number, (name, written) in enumerate(fields, 1):
            kind = written.removesuffix("*")
            added = message.field.add(
                name=name, number=number, label=field.LABEL_OPTIONAL if kind == written else field.LABEL_REPEATED
            )
            if kind in messages:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = field.Type.Value(f"TYPE_{kind.upper()}")
            if title == oneof:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
