"""The .proto file of the dashboard: lint by buf's STANDARD rules, comments, and generated code that is current."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proto import generated_files
from runspan.rpc._pb import dashboard_pb2 as pb
from support.dashboards import REPOSITORY

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, MethodDescriptor

SOURCE = REPOSITORY / "proto" / "runspan" / "v1" / "dashboard.proto"
FILE: FileDescriptor = pb.DESCRIPTOR

PASCAL = re.compile(r"[A-Z][a-z0-9]*([A-Z][a-z0-9]*)*")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")

#: By an ending of a field's name, what its comment must say of the unit.
UNITS = {
    "_unix_nano": "anoseconds since the epoch",
    "_ns": "anoseconds",
    "_hz": "a second",
    "_util": "0 to 1",
    "memory_used": "ytes",
    "memory_total": "ytes",
}


def upper_snake(name: str) -> str:
    """Return a PascalCase name in UPPER_SNAKE_CASE."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


def messages() -> list[Descriptor]:
    """Return the messages of the file."""
    return list(FILE.message_types_by_name.values())


def enums() -> list[EnumDescriptor]:
    """Return the enums of the file."""
    return list(FILE.enum_types_by_name.values())


def methods() -> list[MethodDescriptor]:
    """Return the methods of all services."""
    return [method for service in FILE.services_by_name.values() for method in service.methods]


def fields() -> list[FieldDescriptor]:
    """Return the fields of all messages."""
    return [field for message in messages() for field in message.fields]


def test_generated_code_is_current() -> None:
    """The committed code is what the compiler makes of the .proto files now; `make proto` writes it."""
    generated = generated_files(REPOSITORY)
    for path, text in generated.items():
        assert (REPOSITORY / path).read_text("utf-8") == text, f"{path} is not current: run `make proto`"
    folder = REPOSITORY / "src" / "runspan" / "rpc" / "_pb"
    committed = {path.relative_to(REPOSITORY) for path in folder.glob("*_pb2*.py*")}
    assert committed == set(generated)


def test_packages_are_versioned_and_where_they_belong() -> None:
    """PACKAGE_LOWER_SNAKE_CASE, _VERSION_SUFFIX, _DIRECTORY_MATCH; FILE_LOWER_SNAKE_CASE; SYNTAX_SPECIFIED."""
    assert all(SNAKE.fullmatch(part) for part in FILE.package.split("."))
    assert re.fullmatch(r"v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?", FILE.package.rpartition(".")[2])
    assert FILE.name == f"{FILE.package.replace('.', '/')}/dashboard.proto"
    assert SNAKE.fullmatch(Path(FILE.name).stem)
    assert 'syntax = "proto3";' in SOURCE.read_text("utf-8")


def test_imports_are_used_and_private() -> None:
    """IMPORT_USED, IMPORT_NO_PUBLIC, IMPORT_NO_WEAK: the file needs no other."""
    assert FILE.dependencies == []
    assert FILE.public_dependencies == []


@pytest.mark.parametrize("enum", enums(), ids=lambda enum: str(enum.name))
def test_enums_keep_the_rules(enum: EnumDescriptor) -> None:
    """ENUM_PASCAL_CASE, _VALUE_UPPER_SNAKE_CASE, _VALUE_PREFIX, _ZERO_VALUE_SUFFIX, _NO_ALLOW_ALIAS; first is 0."""
    assert PASCAL.fullmatch(enum.name)
    assert all(UPPER_SNAKE.fullmatch(value.name) for value in enum.values)
    assert all(value.name.startswith(f"{upper_snake(enum.name)}_") for value in enum.values)
    assert (enum.values[0].number, enum.values[0].name) == (0, f"{upper_snake(enum.name)}_UNSPECIFIED")
    assert len({value.number for value in enum.values}) == len(enum.values)


@pytest.mark.parametrize("message", messages(), ids=lambda message: str(message.name))
def test_messages_keep_the_rules(message: Descriptor) -> None:
    """MESSAGE_PASCAL_CASE, FIELD_LOWER_SNAKE_CASE, ONEOF_LOWER_SNAKE_CASE, FIELD_NO_DESCRIPTOR, FIELD_NOT_REQUIRED."""
    assert PASCAL.fullmatch(message.name)
    assert not message.is_extendable
    for field in message.fields:
        assert SNAKE.fullmatch(field.name)
        assert field.name.strip("_") != "descriptor"
        assert not field.is_required
    assert all(SNAKE.fullmatch(oneof.name.lstrip("_")) for oneof in message.oneofs)


def test_methods_have_requests_and_responses_of_their_own() -> None:
    """RPC_PASCAL_CASE, RPC_REQUEST_RESPONSE_UNIQUE, RPC_REQUEST_STANDARD_NAME, RPC_RESPONSE_STANDARD_NAME."""
    used = [kind.full_name for method in methods() for kind in (method.input_type, method.output_type)]
    assert len(set(used)) == len(used)
    for method in methods():
        assert PASCAL.fullmatch(method.name)
        assert method.input_type.name == f"{method.name}Request"
        assert method.output_type.name == f"{method.name}Response"


def test_services_keep_the_rules() -> None:
    """SERVICE_PASCAL_CASE, SERVICE_SUFFIX."""
    for name in FILE.services_by_name:
        assert PASCAL.fullmatch(name)
        assert name.endswith("Service")


@pytest.mark.parametrize("field", fields(), ids=lambda field: str(field.full_name))
def test_fields_with_a_unit_say_which(field: FieldDescriptor) -> None:
    """A field that is a time, a duration, a rate, a share or a size has a comment with its unit."""
    unit = next((unit for ending, unit in UNITS.items() if field.name.endswith(ending)), None)
    if unit is None:
        return
    message = str(field.full_name).split(".")[-2]
    body = re.search(rf"^message {message} {{\n((?:  .*\n)*)^}}", SOURCE.read_text("utf-8"), re.MULTILINE)
    assert body is not None
    declared = re.search(rf"((?:^  //[^\n]*\n)*)^  [^/\n]*\b{field.name} = {field.number};", body[1], re.MULTILINE)
    assert declared is not None
    assert unit in declared[1], f"{field.full_name} does not say its unit"


def test_every_message_enum_and_method_has_a_comment() -> None:
    """What a reader of the .proto file meets is explained, requests and responses of a commented method aside."""
    text = SOURCE.read_text("utf-8")
    declared = re.findall(r"((?:^ *//[^\n]*\n)*)^ *(message|enum|rpc|service) (\w+)", text, re.MULTILINE)
    named = {name for *_, name in declared}
    assert {message.name for message in messages()} <= named
    for comment, _, name in declared:
        assert comment or name.endswith(("Request", "Response")), f"{name} has no comment"
