from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CgroupMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IGNORE: _ClassVar[CgroupMode]
    SOFT: _ClassVar[CgroupMode]

class NetworkLock(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IPTABLES: _ClassVar[NetworkLock]
    NFTABLES: _ClassVar[NetworkLock]
    SKIP: _ClassVar[NetworkLock]

class RequestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EMPTY: _ClassVar[RequestType]
    DUMP: _ClassVar[RequestType]
    RESTORE: _ClassVar[RequestType]
    CHECK: _ClassVar[RequestType]
    PRE_DUMP: _ClassVar[RequestType]
    PAGE_SERVER: _ClassVar[RequestType]
    NOTIFY: _ClassVar[RequestType]
    CPUINFO_DUMP: _ClassVar[RequestType]
    CPUINFO_CHECK: _ClassVar[RequestType]
    FEATURE_CHECK: _ClassVar[RequestType]
    VERSION: _ClassVar[RequestType]
IGNORE: CgroupMode
SOFT: CgroupMode
IPTABLES: NetworkLock
NFTABLES: NetworkLock
SKIP: NetworkLock
EMPTY: RequestType
DUMP: RequestType
RESTORE: RequestType
CHECK: RequestType
PRE_DUMP: RequestType
PAGE_SERVER: RequestType
NOTIFY: RequestType
CPUINFO_DUMP: RequestType
CPUINFO_CHECK: RequestType
FEATURE_CHECK: RequestType
VERSION: RequestType

class InheritFd(_message.Message):
    __slots__ = ("key", "fd")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    key: str
    fd: int
    def __init__(self, key: _Optional[str] = ..., fd: _Optional[int] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("images_dir_fd", "pid", "leave_running", "ext_unix_sk", "tcp_established", "shell_job", "file_locks", "log_level", "log_file", "notify_scripts", "root", "link_remap", "rst_sibling", "inherit_fd", "ext_sharing", "ext_masters", "skip_mnt", "manage_cgroups_mode", "ghost_limit", "external", "timeout", "tcp_skip_in_flight", "lazy_pages", "tcp_close", "network_lock", "images_dir")
    IMAGES_DIR_FD_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LEAVE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXT_UNIX_SK_FIELD_NUMBER: _ClassVar[int]
    TCP_ESTABLISHED_FIELD_NUMBER: _ClassVar[int]
    SHELL_JOB_FIELD_NUMBER: _ClassVar[int]
    FILE_LOCKS_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SCRIPTS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    LINK_REMAP_FIELD_NUMBER: _ClassVar[int]
    RST_SIBLING_FIELD_NUMBER: _ClassVar[int]
    INHERIT_FD_FIELD_NUMBER: _ClassVar[int]
    EXT_SHARING_FIELD_NUMBER: _ClassVar[int]
    EXT_MASTERS_FIELD_NUMBER: _ClassVar[int]
    SKIP_MNT_FIELD_NUMBER: _ClassVar[int]
    MANAGE_CGROUPS_MODE_FIELD_NUMBER: _ClassVar[int]
    GHOST_LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TCP_SKIP_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAZY_PAGES_FIELD_NUMBER: _ClassVar[int]
    TCP_CLOSE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCK_FIELD_NUMBER: _ClassVar[int]
    IMAGES_DIR_FIELD_NUMBER: _ClassVar[int]
    images_dir_fd: int
    pid: int
    leave_running: bool
    ext_unix_sk: bool
    tcp_established: bool
    shell_job: bool
    file_locks: bool
    log_level: int
    log_file: str
    notify_scripts: bool
    root: str
    link_remap: bool
    rst_sibling: bool
    inherit_fd: _containers.RepeatedCompositeFieldContainer[InheritFd]
    ext_sharing: bool
    ext_masters: bool
    skip_mnt: _containers.RepeatedScalarFieldContainer[str]
    manage_cgroups_mode: CgroupMode
    ghost_limit: int
    external: _containers.RepeatedScalarFieldContainer[str]
    timeout: int
    tcp_skip_in_flight: bool
    lazy_pages: bool
    tcp_close: bool
    network_lock: NetworkLock
    images_dir: str
    def __init__(self, images_dir_fd: _Optional[int] = ..., pid: _Optional[int] = ..., leave_running: _Optional[bool] = ..., ext_unix_sk: _Optional[bool] = ..., tcp_established: _Optional[bool] = ..., shell_job: _Optional[bool] = ..., file_locks: _Optional[bool] = ..., log_level: _Optional[int] = ..., log_file: _Optional[str] = ..., notify_scripts: _Optional[bool] = ..., root: _Optional[str] = ..., link_remap: _Optional[bool] = ..., rst_sibling: _Optional[bool] = ..., inherit_fd: _Optional[_Iterable[_Union[InheritFd, _Mapping]]] = ..., ext_sharing: _Optional[bool] = ..., ext_masters: _Optional[bool] = ..., skip_mnt: _Optional[_Iterable[str]] = ..., manage_cgroups_mode: _Optional[_Union[CgroupMode, str]] = ..., ghost_limit: _Optional[int] = ..., external: _Optional[_Iterable[str]] = ..., timeout: _Optional[int] = ..., tcp_skip_in_flight: _Optional[bool] = ..., lazy_pages: _Optional[bool] = ..., tcp_close: _Optional[bool] = ..., network_lock: _Optional[_Union[NetworkLock, str]] = ..., images_dir: _Optional[str] = ...) -> None: ...

class Features(_message.Message):
    __slots__ = ("mem_track", "lazy_pages", "pidfd_store")
    MEM_TRACK_FIELD_NUMBER: _ClassVar[int]
    LAZY_PAGES_FIELD_NUMBER: _ClassVar[int]
    PIDFD_STORE_FIELD_NUMBER: _ClassVar[int]
    mem_track: bool
    lazy_pages: bool
    pidfd_store: bool
    def __init__(self, mem_track: _Optional[bool] = ..., lazy_pages: _Optional[bool] = ..., pidfd_store: _Optional[bool] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("type", "opts", "notify_success", "keep_open", "features")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTS_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    KEEP_OPEN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    type: RequestType
    opts: Options
    notify_success: bool
    keep_open: bool
    features: Features
    def __init__(self, type: _Optional[_Union[RequestType, str]] = ..., opts: _Optional[_Union[Options, _Mapping]] = ..., notify_success: _Optional[bool] = ..., keep_open: _Optional[bool] = ..., features: _Optional[_Union[Features, _Mapping]] = ...) -> None: ...

class DumpReply(_message.Message):
    __slots__ = ("restored",)
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    restored: bool
    def __init__(self, restored: _Optional[bool] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Notify(_message.Message):
    __slots__ = ("script", "pid")
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    script: str
    pid: int
    def __init__(self, script: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("major_number", "minor_number", "gitid", "sublevel")
    MAJOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    MINOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    GITID_FIELD_NUMBER: _ClassVar[int]
    SUBLEVEL_FIELD_NUMBER: _ClassVar[int]
    major_number: int
    minor_number: int
    gitid: str
    sublevel: int
    def __init__(self, major_number: _Optional[int] = ..., minor_number: _Optional[int] = ..., gitid: _Optional[str] = ..., sublevel: _Optional[int] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("type", "success", "dump", "restore", "notify", "cr_errno", "features", "cr_errmsg", "version")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    CR_ERRNO_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    CR_ERRMSG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    type: RequestType
    success: bool
    dump: DumpReply
    restore: RestoreReply
    notify: Notify
    cr_errno: int
    features: Features
    cr_errmsg: str
    version: Version
    def __init__(self, type: _Optional[_Union[RequestType, str]] = ..., success: _Optional[bool] = ..., dump: _Optional[_Union[DumpReply, _Mapping]] = ..., restore: _Optional[_Union[RestoreReply, _Mapping]] = ..., notify: _Optional[_Union[Notify, _Mapping]] = ..., cr_errno: _Optional[int] = ..., features: _Optional[_Union[Features, _Mapping]] = ..., cr_errmsg: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...
