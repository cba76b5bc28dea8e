"""Entry points that need neither a hook nor a word of their own: groups of names of CUDA's driver and of NVML, each
with the reason why a cap, a turn and a share hold without them.

What makes, frees, shows or moves memory, or computes, is never in a group: it is hooked, or LEFT with what follows
(native/hooks.def). A test fails for a name that is in none of the three, or in two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    what: str
    names: str  # a pattern for whole names without their prefix, `cu` or `nvml`
    why: str


CUDA = (
    Group(
        what="questions about devices",
        names=r"Init|DriverGetVersion|GetError(?:Name|String)|DeviceGet(?:Attribute|ByPCIBusId|Clique(?:Count|Info)|Count|DefaultMemPool|DevResource"
        r"|ExecAffinitySupport|FabricClusterUuid|HostAtomicCapabilities|Luid|MemPool|Name|NvSciSyncAttributes|P2PAtomicCapabilities|P2PAttribute"
        r"|PCIBusId|Properties|Texture1DLinearMaxWidth|Uuid|Uuid_v2)?|DeviceCanAccessPeer"
        r"|DeviceComputeCapability|DevicePrimaryCtxGetState|Dev(?:Resource|SmResource)\w+"
        r"|GLInit|W?GLGetDevices?(?:_v2)?|VDPAUGetDevice",
        why="what the driver says of memory, it says by calls that are hooked",
    ),
    Group(
        what="settings of contexts, and which one is current",
        names=r"CtxGet\w+|CtxSet(?:CacheConfig|Current|Flags|SharedMemConfig)|Ctx(?:Push|Pop)Current(?:_v2)?"
        r"|CtxAttach|GreenCtxGet\w+|CtxResetPersistingL2Cache|DevicePrimaryCtxSetFlags(?:_v2)?",
        why="makes and frees nothing; where memory is made, the driver is asked whose it is",
    ),
    Group(
        what="streams' and events' own objects",
        names=r"Stream(?:Get|Set|Query|CopyAttributes|WaitEvent|IsCapturing)\w*"
        r"|StreamUpdateCaptureDependencies\w*|StreamAttachMemAsync\w*|Event(?:Create|Destroy|ElapsedTime|Query|Record)\w*"
        r"|(?:Green)?Ctx(?:Record|Wait)Event|Ipc(?:Get|Open)EventHandle"
        r"|ThreadExchangeStreamCaptureMode",
        why="orders work, and does none; some bytes of the driver's own",
    ),
    Group(
        what="words and semaphores that streams wait for",
        names=r"Stream(?:Wait|Write)Value\w+|StreamBatchMemOp\w*|(?:Import|Destroy)ExternalSemaphore"
        r"|(?:Signal|Wait)ExternalSemaphoresAsync\w*",
        why="a word is written or compared, in memory that is counted",
    ),
    Group(
        what="editing of graphs",
        names=r"GraphAdd(?:BatchMemOp|ChildGraph|Empty|EventRecord|EventWait|ExternalSemaphores(?:Signal|Wait)|Host|Kernel"
        r"|MemFree|Memcpy|Memset)Node(?:_v2)?|Graph(?:Add|Remove)Dependencies(?:_v2)?|Graph\w*Node(?:Get|Set)\w+"
        r"|GraphKernelNodeCopyAttributes|GraphNodeFindInClone|GraphClone|GraphConditionalHandleCreate|GraphCreate"
        r"|GraphDebugDotPrint|GraphDestroy(?:Node)?|GraphExecGet(?:Flags|Id)|GraphGetId|GraphExecUpdate(?:_v2)?"
        r"|GraphGet(?:Edges|Nodes|RootNodes)(?:_v2)?|Graph(?:Retain|Release)UserObject|UserObject\w+"
        r"|Device[GS]etGraphMemAttribute",
        why="a graph computes and allocates when it is launched, which is hooked",
    ),
    Group(
        what="functions, modules, linking, occupancy, tensor maps",
        names=r"Func(?:Get\w+|IsLoaded|Set\w+)|Kernel(?:Get|Set)\w+|Library(?:Get\w+|EnumerateKernels)"
        r"|Module(?:Get\w+|EnumerateFunctions)|Link\w+|Occupancy\w+|ParamSet\w+|TensorMap\w+",
        why="on the host, or about code that is loaded already",
    ),
    Group(
        what="textures and surfaces",
        names=r"(?:Tex|Surf)(?:Ref|Object)\w+",
        why="looks at memory that is counted",
    ),
    Group(
        what="questions about memory",
        names=r"Array(?:3D)?Get\w+|MipmappedArrayGet\w+|MemGet(?:Access|AddressRange|Allocation|LocationInfo)\w*|MemHostGet\w+"
        r"|MemPoolGet\w+|MemRangeGet\w+|Pointer[GS]et\w+|MulticastGetGranularity|LogicalEndpoint(?:GetLimits|Query)",
        why="about what the program made itself, whose bytes it knows",
    ),
    Group(
        what="addresses, access of peers, advice",
        names=r"MemAddress(?:Reserve|Free)|MemSetAccess|MemPoolSetAccess|Ctx(?:Enable|Disable)PeerAccess"
        r"|MemAdvise(?:_v2)?|FlushGPUDirectRDMAWrites",
        why="gives memory a place or a rule, and makes none",
    ),
    Group(
        what="choice of a pool",
        names=r"(?:Device|Mem)SetMemPool",
        why="what is taken from a pool is counted when it is taken",
    ),
    Group(
        what="profiler, logs, core dumps, notices",
        names=r"Profiler\w+|Coredump\w+|Logs\w+|Device(?:Unr|R)egisterAsyncNotification|CheckpointProcessGet\w+",
        why="tells what happens, and changes nothing",
    ),
)

NVML = (
    Group(
        what="start and end, versions, names of things",
        names=r"Init\w*|Shutdown|ErrorString|System\w+|GetExcludedDevice\w+|Unit\w+",
        why="nothing of a card's memory; a process's name is everybody's to read",
    ),
    Group(
        what="which cards there are, and how they are connected",
        names=r"DeviceGet(?:Count|Handle|Index|MinorNumber|Name|UUID|Serial|ModuleId|Pdi|Hostname|PlatformInfo|BoardId|BoardPart"
        r"|Brand|BridgeChip|BusType|Pci|CurrPcie|MaxPcie|GpuMaxPcie|MultiGpuBoard|IrqNum|Numa|Topology|P2P|NvLink|Nvlink"
        r"|GpuFabricInfo|C2cMode|CpuAffinity|MemoryAffinity|AddressingMode|DisplayMode|DisplayActive)\w*"
        r"|DeviceOnSameBoard|Device(?:Set|Clear)CpuAffinity|DeviceSetHostname\w*"
        r"|Device(?:Set|Reset|Freeze)N[vV][lL]ink(?!DeviceLowPower)\w+",
        why="the job's card among the others, as it is",
    ),
    Group(
        what="what a card can do",
        names=r"DeviceGet(?:Architecture|Capabilities|ComputeMode|CudaComputeCapability|NumGpuCores"
        r"|MemoryBusWidth|EncoderCapacity|GpuOperationMode|DriverModel|APIRestriction|PersistenceMode|GspFirmware"
        r"|Inforom|VbiosVersion|GridLicensable|VirtualizationMode)\w*|DeviceValidateInforom"
        r"|DeviceSet(?:APIRestriction|ComputeMode|DriverModel|GpuOperationMode|PersistenceMode|VirtualizationMode)",
        why="facts and settings of the card; the settings need an administrator",
    ),
    Group(
        what="clocks, power, fans, temperatures",
        names=r"Device(?:Get|Set|Reset)\w*(?:Clock|Clk|Power|Pstates|PerformanceState|PerformanceModes|Fan|Cooler"
        r"|Temperature|Thermal|Energy|Violation|Tgp|BBX)\w*|Device(?:PowerSmoothing|WorkloadPowerProfile)\w+"
        r"|DeviceSetRusdSettings\w*",
        why="of the whole card, and no memory",
    ),
    Group(
        what="errors and health",
        names=r"Device(?:Get|Set|Clear)\w*(?:Ecc|Retired|Remapp\w+|RowRemapper|RepairStatus|UnrepairableMemory"
        r"|MemoryErrorCounter|DramEncryption)\w*|Device(?:Query|Modify)DrainState|DeviceRemoveGpu(?:_v2)?"
        r"|DeviceDiscoverGpus|DeviceReadWritePRM\w*|DeviceReadPRMCounters\w*|DeviceRegisterEvents"
        r"|DeviceGetSupportedEventTypes|EventSet\w+",
        why="how well the card is, not what is on it",
    ),
    Group(
        what="partitions of a card (MIG) and virtual GPUs",
        names=r"(?:Gpu|Compute)Instance\w+|VgpuInstance\w+|VgpuType\w+|[GS]etVgpu\w+"
        r"|Device\w*(?:Mig|GpuInstance(?!ProfileInfo)|ComputeInstanceId|Vgpu|PgpuMetadata)\w*",
        why="made by an administrator, beside carpool; their figures are their own, not the card's",
    ),
    Group(
        what="confidential computing",
        names=r"DeviceGetConfComputeGpu\w+|DeviceSetConfCompute\w+",
        why="reports for an auditor, and settings of an administrator",
    ),
)


def groups_of(name: str) -> list[Group]:
    """The groups that have this entry point; it should be one, or none."""
    prefix, groups = ("nvml", NVML) if name.startswith("nvml") else ("cu", CUDA)
    return [group for group in groups if re.fullmatch(group.names, name.removeprefix(prefix))]
