from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Order(_message.Message):
    __slots__ = ("operation", "epoch", "plan", "worker", "incarnation", "deadline")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    operation: str
    epoch: int
    plan: str
    worker: str
    incarnation: int
    deadline: float
    def __init__(self, operation: _Optional[str] = ..., epoch: _Optional[int] = ..., plan: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[int] = ..., deadline: _Optional[float] = ...) -> None: ...

class StepOrder(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: Order
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ...) -> None: ...

class PreflightOrder(_message.Message):
    __slots__ = ("order", "destination", "slot", "facts", "bytes", "spec", "privileges", "uses")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    order: Order
    destination: bool
    slot: str
    facts: _containers.ScalarMap[str, str]
    bytes: int
    spec: WorkerSpec
    privileges: Privileges
    uses: Uses
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., destination: _Optional[bool] = ..., slot: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., bytes: _Optional[int] = ..., spec: _Optional[_Union[WorkerSpec, _Mapping]] = ..., privileges: _Optional[_Union[Privileges, _Mapping]] = ..., uses: _Optional[_Union[Uses, _Mapping]] = ...) -> None: ...

class PreflightReply(_message.Message):
    __slots__ = ("refusals", "facts", "bytes", "worker", "image_address", "privileges", "uses")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    facts: _containers.ScalarMap[str, str]
    bytes: int
    worker: WorkerReport
    image_address: str
    privileges: Privileges
    uses: Uses
    def __init__(self, refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., facts: _Optional[_Mapping[str, str]] = ..., bytes: _Optional[int] = ..., worker: _Optional[_Union[WorkerReport, _Mapping]] = ..., image_address: _Optional[str] = ..., privileges: _Optional[_Union[Privileges, _Mapping]] = ..., uses: _Optional[_Union[Uses, _Mapping]] = ...) -> None: ...

class Privileges(_message.Message):
    __slots__ = ("capabilities", "no_new_privs")
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NO_NEW_PRIVS_FIELD_NUMBER: _ClassVar[int]
    capabilities: int
    no_new_privs: bool
    def __init__(self, capabilities: _Optional[int] = ..., no_new_privs: _Optional[bool] = ...) -> None: ...

class Uses(_message.Message):
    __slots__ = ("files", "addresses", "container")
    FILES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[FileUse]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    container: Contained
    def __init__(self, files: _Optional[_Iterable[_Union[FileUse, _Mapping]]] = ..., addresses: _Optional[_Iterable[str]] = ..., container: _Optional[_Union[Contained, _Mapping]] = ...) -> None: ...

class Contained(_message.Message):
    __slots__ = ("image", "label", "points")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    image: str
    label: str
    points: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, image: _Optional[str] = ..., label: _Optional[str] = ..., points: _Optional[_Iterable[str]] = ...) -> None: ...

class FileUse(_message.Message):
    __slots__ = ("path", "bytes", "build", "mode")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    path: str
    bytes: int
    build: str
    mode: int
    def __init__(self, path: _Optional[str] = ..., bytes: _Optional[int] = ..., build: _Optional[str] = ..., mode: _Optional[int] = ...) -> None: ...

class PrepareOrder(_message.Message):
    __slots__ = ("order", "slot", "spec", "pod_uid", "pod_namespace", "pod_name", "pod_container", "container")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    order: Order
    slot: str
    spec: WorkerSpec
    pod_uid: str
    pod_namespace: str
    pod_name: str
    pod_container: str
    container: Contained
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., slot: _Optional[str] = ..., spec: _Optional[_Union[WorkerSpec, _Mapping]] = ..., pod_uid: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., pod_name: _Optional[str] = ..., pod_container: _Optional[str] = ..., container: _Optional[_Union[Contained, _Mapping]] = ...) -> None: ...

class FreezeOrder(_message.Message):
    __slots__ = ("order", "image", "to", "hold_s", "ahead_s")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    order: Order
    image: str
    to: Peer
    hold_s: float
    ahead_s: float
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., image: _Optional[str] = ..., to: _Optional[_Union[Peer, _Mapping]] = ..., hold_s: _Optional[float] = ..., ahead_s: _Optional[float] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("image", "frozen_at", "thawed_at", "dump_s", "send_s", "copy_s", "copied_bytes", "sent_bytes")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_AT_FIELD_NUMBER: _ClassVar[int]
    THAWED_AT_FIELD_NUMBER: _ClassVar[int]
    DUMP_S_FIELD_NUMBER: _ClassVar[int]
    SEND_S_FIELD_NUMBER: _ClassVar[int]
    COPY_S_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    image: ImageInfo
    frozen_at: float
    thawed_at: float
    dump_s: float
    send_s: float
    copy_s: float
    copied_bytes: int
    sent_bytes: int
    def __init__(self, image: _Optional[_Union[ImageInfo, _Mapping]] = ..., frozen_at: _Optional[float] = ..., thawed_at: _Optional[float] = ..., dump_s: _Optional[float] = ..., send_s: _Optional[float] = ..., copy_s: _Optional[float] = ..., copied_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class RestoreOrder(_message.Message):
    __slots__ = ("order", "slot", "image", "hold_s", "pod_uid", "pod_namespace", "pod_name", "pod_container")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    order: Order
    slot: str
    image: str
    hold_s: float
    pod_uid: str
    pod_namespace: str
    pod_name: str
    pod_container: str
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., slot: _Optional[str] = ..., image: _Optional[str] = ..., hold_s: _Optional[float] = ..., pod_uid: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., pod_name: _Optional[str] = ..., pod_container: _Optional[str] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("restore_s", "incarnation")
    RESTORE_S_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    restore_s: float
    incarnation: int
    def __init__(self, restore_s: _Optional[float] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ("running_at", "probe")
    RUNNING_AT_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    running_at: float
    probe: str
    def __init__(self, running_at: _Optional[float] = ..., probe: _Optional[str] = ...) -> None: ...

class CheckpointOrder(_message.Message):
    __slots__ = ("order", "image")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    order: Order
    image: str
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., image: _Optional[str] = ...) -> None: ...

class SendOrder(_message.Message):
    __slots__ = ("order", "image", "to")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    order: Order
    image: str
    to: Peer
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., image: _Optional[str] = ..., to: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class SendReply(_message.Message):
    __slots__ = ("bytes_sent", "send_s")
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    SEND_S_FIELD_NUMBER: _ClassVar[int]
    bytes_sent: int
    send_s: float
    def __init__(self, bytes_sent: _Optional[int] = ..., send_s: _Optional[float] = ...) -> None: ...

class DiscardOrder(_message.Message):
    __slots__ = ("order", "image", "archived")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    order: Order
    image: str
    archived: bool
    def __init__(self, order: _Optional[_Union[Order, _Mapping]] = ..., image: _Optional[str] = ..., archived: _Optional[bool] = ...) -> None: ...

class StandOrder(_message.Message):
    __slots__ = ("order", "signature", "key", "endorsement", "certificates")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENDORSEMENT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    order: bytes
    signature: bytes
    key: bytes
    endorsement: bytes
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, order: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., key: _Optional[bytes] = ..., endorsement: _Optional[bytes] = ..., certificates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("at", "detail", "connections", "ended", "moved")
    AT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    at: float
    detail: str
    connections: int
    ended: int
    moved: int
    def __init__(self, at: _Optional[float] = ..., detail: _Optional[str] = ..., connections: _Optional[int] = ..., ended: _Optional[int] = ..., moved: _Optional[int] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node", "address")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "what", "remedy", "subject")
    CODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    code: str
    what: str
    remedy: str
    subject: str
    def __init__(self, code: _Optional[str] = ..., what: _Optional[str] = ..., remedy: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class InventoryRequest(_message.Message):
    __slots__ = ("looks_on", "taken", "kept", "presumed_s", "archive", "archived")
    LOOKS_ON_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    PRESUMED_S_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    looks_on: bool
    taken: float
    kept: float
    presumed_s: float
    archive: bool
    archived: str
    def __init__(self, looks_on: _Optional[bool] = ..., taken: _Optional[float] = ..., kept: _Optional[float] = ..., presumed_s: _Optional[float] = ..., archive: _Optional[bool] = ..., archived: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "at", "epoch", "runtime", "image_address", "version", "labels", "facts", "slots", "workers", "images", "notices", "sources", "problems", "stood", "canaries", "taints", "memory", "disk", "images_in_memory", "archive", "archive_looked", "archive_digest", "archived", "troubles")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CanariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    STOOD_FIELD_NUMBER: _ClassVar[int]
    CANARIES_FIELD_NUMBER: _ClassVar[int]
    TAINTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    IMAGES_IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_LOOKED_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    node: str
    at: float
    epoch: int
    runtime: str
    image_address: str
    version: str
    labels: _containers.ScalarMap[str, str]
    facts: _containers.ScalarMap[str, str]
    slots: _containers.RepeatedCompositeFieldContainer[SlotReport]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerReport]
    images: _containers.RepeatedCompositeFieldContainer[ImageInfo]
    notices: _containers.RepeatedCompositeFieldContainer[NoticeReport]
    sources: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedCompositeFieldContainer[Refusal]
    stood: _containers.RepeatedScalarFieldContainer[bytes]
    canaries: _containers.ScalarMap[str, float]
    taints: _containers.RepeatedCompositeFieldContainer[Taint]
    memory: int
    disk: int
    images_in_memory: bool
    archive: bool
    archive_looked: float
    archive_digest: str
    archived: _containers.RepeatedCompositeFieldContainer[ImageInfo]
    troubles: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, node: _Optional[str] = ..., at: _Optional[float] = ..., epoch: _Optional[int] = ..., runtime: _Optional[str] = ..., image_address: _Optional[str] = ..., version: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., facts: _Optional[_Mapping[str, str]] = ..., slots: _Optional[_Iterable[_Union[SlotReport, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerReport, _Mapping]]] = ..., images: _Optional[_Iterable[_Union[ImageInfo, _Mapping]]] = ..., notices: _Optional[_Iterable[_Union[NoticeReport, _Mapping]]] = ..., sources: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., stood: _Optional[_Iterable[bytes]] = ..., canaries: _Optional[_Mapping[str, float]] = ..., taints: _Optional[_Iterable[_Union[Taint, _Mapping]]] = ..., memory: _Optional[int] = ..., disk: _Optional[int] = ..., images_in_memory: _Optional[bool] = ..., archive: _Optional[bool] = ..., archive_looked: _Optional[float] = ..., archive_digest: _Optional[str] = ..., archived: _Optional[_Iterable[_Union[ImageInfo, _Mapping]]] = ..., troubles: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class SlotReport(_message.Message):
    __slots__ = ("id", "roles", "gpu_model", "gpus", "worker", "reserved_by", "gpu", "gpu_memory", "domains")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BY_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    id: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    gpu_model: str
    gpus: int
    worker: str
    reserved_by: str
    gpu: _containers.RepeatedCompositeFieldContainer[GpuReport]
    gpu_memory: int
    domains: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., gpu_model: _Optional[str] = ..., gpus: _Optional[int] = ..., worker: _Optional[str] = ..., reserved_by: _Optional[str] = ..., gpu: _Optional[_Iterable[_Union[GpuReport, _Mapping]]] = ..., gpu_memory: _Optional[int] = ..., domains: _Optional[_Iterable[str]] = ...) -> None: ...

class GpuReport(_message.Message):
    __slots__ = ("uuid", "model", "pci", "memory")
    UUID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PCI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    model: str
    pci: str
    memory: int
    def __init__(self, uuid: _Optional[str] = ..., model: _Optional[str] = ..., pci: _Optional[str] = ..., memory: _Optional[int] = ...) -> None: ...

class Taint(_message.Message):
    __slots__ = ("key", "value", "effect")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    effect: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ...) -> None: ...

class Toleration(_message.Message):
    __slots__ = ("key", "operator", "value", "effect", "seconds")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    value: str
    effect: str
    seconds: float
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., value: _Optional[str] = ..., effect: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Tolerations(_message.Message):
    __slots__ = ("tolerations",)
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    tolerations: _containers.RepeatedCompositeFieldContainer[Toleration]
    def __init__(self, tolerations: _Optional[_Iterable[_Union[Toleration, _Mapping]]] = ...) -> None: ...

class WorkerSpec(_message.Message):
    __slots__ = ("worker", "role", "graph", "engine", "labels", "address", "mac", "control", "tolerations", "linked", "connections")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    TOLERATIONS_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    role: str
    graph: str
    engine: str
    labels: _containers.ScalarMap[str, str]
    address: str
    mac: str
    control: str
    tolerations: Tolerations
    linked: bool
    connections: str
    def __init__(self, worker: _Optional[str] = ..., role: _Optional[str] = ..., graph: _Optional[str] = ..., engine: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., address: _Optional[str] = ..., mac: _Optional[str] = ..., control: _Optional[str] = ..., tolerations: _Optional[_Union[Tolerations, _Mapping]] = ..., linked: _Optional[bool] = ..., connections: _Optional[str] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("spec", "state", "slot", "incarnation", "memory", "operation", "pod_uid", "pod_namespace", "pod_name", "pod_container", "gpu_memory", "doubt")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    POD_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    spec: WorkerSpec
    state: str
    slot: str
    incarnation: int
    memory: int
    operation: str
    pod_uid: str
    pod_namespace: str
    pod_name: str
    pod_container: str
    gpu_memory: int
    doubt: str
    def __init__(self, spec: _Optional[_Union[WorkerSpec, _Mapping]] = ..., state: _Optional[str] = ..., slot: _Optional[str] = ..., incarnation: _Optional[int] = ..., memory: _Optional[int] = ..., operation: _Optional[str] = ..., pod_uid: _Optional[str] = ..., pod_namespace: _Optional[str] = ..., pod_name: _Optional[str] = ..., pod_container: _Optional[str] = ..., gpu_memory: _Optional[int] = ..., doubt: _Optional[str] = ...) -> None: ...

class ImageInfo(_message.Message):
    __slots__ = ("id", "spec", "incarnation", "taken_at", "bytes", "pause_s", "facts", "runtime", "doubt", "privileges")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    id: str
    spec: WorkerSpec
    incarnation: int
    taken_at: float
    bytes: int
    pause_s: float
    facts: _containers.ScalarMap[str, str]
    runtime: str
    doubt: str
    privileges: Privileges
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[WorkerSpec, _Mapping]] = ..., incarnation: _Optional[int] = ..., taken_at: _Optional[float] = ..., bytes: _Optional[int] = ..., pause_s: _Optional[float] = ..., facts: _Optional[_Mapping[str, str]] = ..., runtime: _Optional[str] = ..., doubt: _Optional[str] = ..., privileges: _Optional[_Union[Privileges, _Mapping]] = ...) -> None: ...

class NoticeReport(_message.Message):
    __slots__ = ("id", "kind", "seen_at", "deadline", "source", "detail", "slot", "not_dumpable")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NOT_DUMPABLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: str
    seen_at: float
    deadline: float
    source: str
    detail: str
    slot: str
    not_dumpable: bool
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[str] = ..., seen_at: _Optional[float] = ..., deadline: _Optional[float] = ..., source: _Optional[str] = ..., detail: _Optional[str] = ..., slot: _Optional[str] = ..., not_dumpable: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("hello", "notice", "notice_withdrawn", "progress", "exit")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    NOTICE_WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    notice: NoticeReport
    notice_withdrawn: str
    progress: Progress
    exit: WorkerExit
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., notice: _Optional[_Union[NoticeReport, _Mapping]] = ..., notice_withdrawn: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., exit: _Optional[_Union[WorkerExit, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "epoch")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("operation", "step", "bytes", "at", "total", "rate", "left_s")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    operation: str
    step: str
    bytes: int
    at: float
    total: int
    rate: float
    left_s: float
    def __init__(self, operation: _Optional[str] = ..., step: _Optional[str] = ..., bytes: _Optional[int] = ..., at: _Optional[float] = ..., total: _Optional[int] = ..., rate: _Optional[float] = ..., left_s: _Optional[float] = ...) -> None: ...

class WorkerExit(_message.Message):
    __slots__ = ("worker", "status")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    status: int
    def __init__(self, worker: _Optional[str] = ..., status: _Optional[int] = ...) -> None: ...

class JournalRequest(_message.Message):
    __slots__ = ("operation",)
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    operation: str
    def __init__(self, operation: _Optional[str] = ...) -> None: ...

class JournalReply(_message.Message):
    __slots__ = ("entries", "copy", "images")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[JournalEntry]
    copy: str
    images: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Iterable[_Union[JournalEntry, _Mapping]]] = ..., copy: _Optional[str] = ..., images: _Optional[_Iterable[str]] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("step", "state", "at", "detail")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    step: str
    state: str
    at: float
    detail: str
    def __init__(self, step: _Optional[str] = ..., state: _Optional[str] = ..., at: _Optional[float] = ..., detail: _Optional[str] = ...) -> None: ...
