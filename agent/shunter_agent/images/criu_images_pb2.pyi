from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PagemapHead(_message.Message):
    __slots__ = ("pages_id",)
    PAGES_ID_FIELD_NUMBER: _ClassVar[int]
    pages_id: int
    def __init__(self, pages_id: _Optional[int] = ...) -> None: ...

class PagemapEntry(_message.Message):
    __slots__ = ("vaddr", "compat_nr_pages", "in_parent", "flags", "nr_pages")
    VADDR_FIELD_NUMBER: _ClassVar[int]
    COMPAT_NR_PAGES_FIELD_NUMBER: _ClassVar[int]
    IN_PARENT_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    NR_PAGES_FIELD_NUMBER: _ClassVar[int]
    vaddr: int
    compat_nr_pages: int
    in_parent: bool
    flags: int
    nr_pages: int
    def __init__(self, vaddr: _Optional[int] = ..., compat_nr_pages: _Optional[int] = ..., in_parent: _Optional[bool] = ..., flags: _Optional[int] = ..., nr_pages: _Optional[int] = ...) -> None: ...

class InventoryEntry(_message.Message):
    __slots__ = ("tcp_close", "network_lock_method")
    TCP_CLOSE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCK_METHOD_FIELD_NUMBER: _ClassVar[int]
    tcp_close: bool
    network_lock_method: int
    def __init__(self, tcp_close: _Optional[bool] = ..., network_lock_method: _Optional[int] = ...) -> None: ...

class MmEntry(_message.Message):
    __slots__ = ("vmas",)
    VMAS_FIELD_NUMBER: _ClassVar[int]
    vmas: _containers.RepeatedCompositeFieldContainer[VmaEntry]
    def __init__(self, vmas: _Optional[_Iterable[_Union[VmaEntry, _Mapping]]] = ...) -> None: ...

class VmaEntry(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("type", "id", "isk")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ISK_FIELD_NUMBER: _ClassVar[int]
    type: int
    id: int
    isk: InetSocket
    def __init__(self, type: _Optional[int] = ..., id: _Optional[int] = ..., isk: _Optional[_Union[InetSocket, _Mapping]] = ...) -> None: ...

class InetSocket(_message.Message):
    __slots__ = ("family", "type", "proto", "state", "src_port", "dst_port", "src_addr", "dst_addr")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SRC_PORT_FIELD_NUMBER: _ClassVar[int]
    DST_PORT_FIELD_NUMBER: _ClassVar[int]
    SRC_ADDR_FIELD_NUMBER: _ClassVar[int]
    DST_ADDR_FIELD_NUMBER: _ClassVar[int]
    family: int
    type: int
    proto: int
    state: int
    src_port: int
    dst_port: int
    src_addr: _containers.RepeatedScalarFieldContainer[int]
    dst_addr: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, family: _Optional[int] = ..., type: _Optional[int] = ..., proto: _Optional[int] = ..., state: _Optional[int] = ..., src_port: _Optional[int] = ..., dst_port: _Optional[int] = ..., src_addr: _Optional[_Iterable[int]] = ..., dst_addr: _Optional[_Iterable[int]] = ...) -> None: ...
