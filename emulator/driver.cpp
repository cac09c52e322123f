// driver.cpp - a CUDA driver that interprets PTX on the CPU.
//
// Built as libcuda.so.1 it stands in for NVIDIA's driver library: a program
// that opens the driver by name (such as IREE's CUDA HAL) finds a device
// called "hloracle PTX emulator", loads its PTX modules into it, and launches
// kernels that are interpreted here.  It exists to find kernels that compute
// wrong results, and it checks what it runs:
//
//  * every global, shared and local access is checked against the allocation,
//    the block's shared window or the thread's local window; an access outside
//    or misaligned fails the launch as on a device and names kernel,
//    instruction, thread and address on stderr;
//  * fresh device memory and every block's shared memory hold 0xFF bytes (NaN
//    in every float format), so that reads of unwritten memory show;
//  * barriers or warp-synchronous instructions that can never complete fail
//    the launch; launch sizes are checked against a real device's limits;
//  * an instruction, type or modifier that is not implemented fails
//    cuModuleLoadData with CUDA_ERROR_INVALID_PTX and is quoted on stderr.
//
// How it runs: a kernel is decoded once into an array of fixed-size
// instructions whose handlers process the 32 lanes of a warp together; the
// register file of a warp is an array of 32 values for each register.  Lanes
// that branch apart are run lowest program counter first, which brings them
// back together in compiler-made code; instructions that synchronise lanes
// wait for the lanes that they name.  Everything the driver is asked to do is
// done at once on the calling thread, in order, so streams, events and graphs
// only keep their book.
//
// Supported PTX: integer, f16, bf16 (also packed in pairs), f32 and f64
// arithmetic, comparisons, conversions, bit operations, all memory spaces,
// vector accesses, atomics, shuffles, votes, matches, warp reductions,
// barriers, asynchronous copies (done at once), ldmatrix, mma.sync for
// f16/bf16/tf32/s8/u8, branches, and direct non-recursive calls (expanded in
// line).  Approximate functions are computed exactly and then rounded.
// Not supported: textures, surfaces, indirect or recursive calls, clusters,
// wgmma, wmma, tensor maps, 8-bit floats, cubin images.
//
// Environment:
//   HLORACLE_EMULATED_CAPABILITY  compute capability, 8.9 if not set
//   HLORACLE_EMULATED_MEMORY      device memory in bytes, 8 GiB if not set
//   HLORACLE_EMULATED_DEVICES     number of devices, 1 if not set
//   HLORACLE_EMULATED_THREADS     host threads that run blocks, 1 if not set
//   HLORACLE_EMULATED_ORDER       "reverse" runs blocks and warps last first
//                                 (results must not depend on it)
//   HLORACLE_EMULATED_TRACE       1 prints a line on stderr for each launch
//
// Built by __init__.py: c++ -O3 -march=native -shared -fPIC -std=c++17 -pthread driver.cpp
// (plain -O2 works as well and is slower).

#include "decoder.h"

namespace {

// ---------------------------------------------------------------------------
// Modules.

struct Module {
  std::string text;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::map<std::string, std::pair<u64, u64>> globals;  // address and bytes
};

struct Capability {
  int major = 8, minor = 9;
};

Capability capability() {
  Capability c;
  if (const char* text = getenv("HLORACLE_EMULATED_CAPABILITY"))
    if (sscanf(text, "%d.%d", &c.major, &c.minor) != 2) c = Capability();
  return c;
}

// The most dynamic shared memory that a kernel can ask for.
u32 sharedLimit() {
  Capability c = capability();
  int version = c.major * 10 + c.minor;
  if (version >= 90 && version < 120) return 227 << 10;
  if (version == 80 || version == 87) return 163 << 10;
  if (version == 86 || version == 89 || version >= 120) return 99 << 10;
  if (version == 75) return 64 << 10;
  return version >= 70 ? 96 << 10 : 48 << 10;
}

void checkTarget(const Source& source) {
  Capability c = capability();
  int wanted = 0;
  if (source.target.substr(0, 3) == "sm_")
    wanted = atoi(std::string(source.target.substr(3)).c_str());
  if (wanted > c.major * 10 + c.minor)
    throw Fault{CUDA_ERROR_INVALID_PTX,
                format("the PTX is for %.*s and the device's compute capability is %d.%d",
                       int(source.target.size()), source.target.data(), c.major, c.minor)};
}

// Places the module's variables; returns the bytes of static shared memory.
u32 placeVariables(const Source& source, Module& module, Symbols& symbols) {
  u32 shared = 0;
  for (const Variable& v : source.variables) {
    if (v.place == Variable::Shared) {
      if (v.external && !v.bytes) {
        symbols[v.name] = {Symbol::Dynamic, 0, 0};
        continue;
      }
      shared = (shared + v.align - 1) / v.align * v.align;
      symbols[v.name] = {Symbol::Shared, shared, v.bytes};
      shared += u32(v.bytes);
      continue;
    }
    if (v.external) throw Fault{CUDA_ERROR_INVALID_PTX, "external variable: " + std::string(v.name)};
    void* at = g_memory.allocate(std::max<u64>(v.bytes, 1), -1);
    if (!at) throw Fault{CUDA_ERROR_OUT_OF_MEMORY, "no memory for a module's variable"};
    memset(at, 0, v.bytes);
    memcpy(at, v.initial.data(), v.initial.size());
    module.globals[std::string(v.name)] = {u64(at), v.bytes};
    symbols[v.name] = {Symbol::Address, u64(at), v.bytes};
  }
  return shared;
}

void loadModule(Module& module) {
  Source source = Parser(module.text).parse();
  checkTarget(source);
  Symbols symbols;
  u32 shared = placeVariables(source, module, symbols);
  for (const auto& [name, function] : source.functions) {
    if (!function.entry) continue;
    auto kernel = std::make_unique<Kernel>();
    kernel->name = std::string(name);
    kernel->staticShared = shared;
    if (function.maxThreads) kernel->maxThreads = std::min(function.maxThreads, 1024u);
    std::copy_n(function.required, 3, kernel->required);
    Decoder(source, symbols, *kernel).decode(function);
    if (kernel->staticShared > 48 << 10)
      throw Fault{CUDA_ERROR_INVALID_PTX, "kernel " + kernel->name + ": over 48 KiB of shared data"};
    module.kernels[kernel->name] = std::move(kernel);
  }
}

void freeGlobals(Module& module) {
  for (const auto& g : module.globals) g_memory.release(g.second.first);
}

// ---------------------------------------------------------------------------
// Launches.

CUresult g_broken = CUDA_SUCCESS;  // a kernel's fault breaks the context, as on a device

std::string checkLaunch(const Kernel& k, const Launch& l) {
  u64 threads = u64(l.block[0]) * l.block[1] * l.block[2];
  for (int d = 0; d < 3; ++d)
    if (!l.grid[d] || !l.block[d]) return "an empty grid or block";
  if (l.block[0] > 1024 || l.block[1] > 1024 || l.block[2] > 64 || threads > 1024)
    return "a block of more than 1024 threads";
  if (threads > k.maxThreads) return "more threads in a block than .maxntid says";
  for (int d = 0; d < 3; ++d)
    if (k.required[0] && l.block[d] != k.required[d]) return "another block than .reqntid says";
  if (l.grid[0] > 0x7fffffffu || l.grid[1] > 65535 || l.grid[2] > 65535) return "too large a grid";
  if (u64(k.staticShared) + l.dynamicBytes > std::max(k.dynamicLimit, 48u << 10))
    return "more shared memory than the kernel may use";
  return "";
}

void trace(const Launch& l, double seconds, u64 executed) {
  fprintf(stderr,
          "hloracle PTX emulator: launch %s grid %u,%u,%u block %u,%u,%u shared %u: "
          "%.3f ms, %llu warp instructions\n",
          l.kernel->name.c_str(), l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
          l.block[2], l.dynamicBytes, seconds * 1e3, (unsigned long long)executed);
}

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

CUresult launchKernel(const Launch& launch) {
  std::lock_guard<std::mutex> hold(g_device);
  if (g_broken) return g_broken;
  std::string wrong = checkLaunch(*launch.kernel, launch);
  if (!wrong.empty())
    return report(CUDA_ERROR_INVALID_VALUE, "launch of " + launch.kernel->name + ": " + wrong);
  Clock::time_point start = Clock::now();
  u64 before = g_executed;
  try {
    runGrid(launch);
  } catch (const Fault& f) {
    g_broken = f.code;
    return report(f.code, f.what);
  }
  if (environmentNumber("HLORACLE_EMULATED_TRACE", 0))
    trace(launch, secondsSince(start), g_executed - before);
  return CUDA_SUCCESS;
}

// A launch's parameters, gathered from an array of pointers or from a buffer.
std::vector<u8> gatherParameters(const Kernel& k, void** pointers, void** extra) {
  std::vector<u8> out(std::max<u32>(k.parameterBytes, 64));
  if (pointers) {
    for (size_t n = 0; n < k.parameters.size(); ++n)
      memcpy(out.data() + k.parameters[n].offset, pointers[n], k.parameters[n].bytes);
    return out;
  }
  const void* buffer = nullptr;
  size_t size = 0;
  for (; extra && *extra; extra += 2) {
    if (*extra == reinterpret_cast<void*>(1)) buffer = extra[1];
    if (*extra == reinterpret_cast<void*>(2)) size = *static_cast<size_t*>(extra[1]);
  }
  if (buffer) memcpy(out.data(), buffer, std::min(size, out.size()));
  return out;
}

// ---------------------------------------------------------------------------
// What the driver's handles point to.

struct Context {
  int device;
};

struct Stream {
  int device;
};

struct Event {
  Clock::time_point time;
  bool recorded = false;
};

struct Pool {
  int device;
  std::map<int, u64> attributes;
};

struct Graph;

struct Node {
  std::function<CUresult()> run;
};

struct Graph {
  std::deque<Node> nodes;  // each after those it depends on
};

struct Executable {
  std::vector<std::function<CUresult()>> steps;
};

constexpr int kMostDevices = 16;
Context g_contexts[kMostDevices];
thread_local std::vector<Context*> t_contexts;
bool g_initialised = false;

int deviceCount() {
  return int(std::min<u64>(environmentNumber("HLORACLE_EMULATED_DEVICES", 1), kMostDevices));
}

bool isDevice(int device) { return device >= 0 && device < deviceCount(); }

int currentDevice() {
  return t_contexts.empty() || !t_contexts.back() ? 0 : t_contexts.back()->device;
}

CUresult allocateOn(u64* out, size_t bytes, int device) {
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(g_device);
  if (g_broken) return g_broken;
  void* at = g_memory.allocate(bytes, device);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = u64(at);
  return CUDA_SUCCESS;
}

CUresult freeAt(u64 address) {
  if (!address) return CUDA_SUCCESS;
  std::lock_guard<std::mutex> hold(g_device);
  return g_memory.release(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// True if [address, address + bytes) is not cut off by the end of a device
// allocation; addresses in none are host memory.
bool wholeRange(u64 address, size_t bytes) {
  Range r = g_memory.find(address);
  return r.lo == Range().lo || r.hi - address >= bytes;
}

CUresult copyBytes(u64 to, u64 from, size_t bytes) {
  std::lock_guard<std::mutex> hold(g_device);
  if (g_broken) return g_broken;
  if (!wholeRange(to, bytes) || !wholeRange(from, bytes))
    return report(CUDA_ERROR_INVALID_VALUE, "a copy runs over the end of an allocation");
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

template <class T>
CUresult fillValues(u64 to, T value, size_t count) {
  std::lock_guard<std::mutex> hold(g_device);
  if (g_broken) return g_broken;
  Range r = g_memory.find(to);
  if (to % sizeof(T) || r.lo == Range().lo || r.hi - to < count * sizeof(T))
    return report(CUDA_ERROR_INVALID_VALUE, "a fill is not within an allocation");
  T* at = reinterpret_cast<T*>(to);
  std::fill(at, at + count, value);
  return CUDA_SUCCESS;
}

int attribute(int which) {
  Capability c = capability();
  switch (which) {
    case 1: case 2: case 3: return 1024;  // threads in a block, its x and y
    case 4: return 64;                    // z of a block
    case 5: return 0x7fffffff;            // x of a grid
    case 6: case 7: return 65535;         // y and z of a grid
    case 8: return 48 << 10;              // shared memory of a block
    case 9: return 64 << 10;              // constant memory
    case 10: return kLanes;
    case 11: return 0x7fffffff;           // pitch
    case 12: case 82: return 65536;       // registers of a block, of a processor
    case 13: case 36: return 1000000;     // clock rates
    case 14: return 512;
    case 16: return 16;                   // processors
    case 15: case 19: case 31: case 40: case 41: case 78: return 1;
    case 37: return 256;
    case 38: return 4 << 20;
    case 39: return 2048;                 // threads of a processor
    case 75: return c.major;
    case 76: return c.minor;
    case 79: case 80: return 1;
    case 81: return int(sharedLimit()) + 1024;
    case 83: case 89: case 91: case 99: return 1;  // managed and registered memory
    case 97: return int(sharedLimit());
    case 106: return 32;
    case 115: return 1;                   // memory pools
    default: return 0;
  }
}

CUresult functionAttribute(const Kernel& k, int which, int* out) {
  switch (which) {
    case 0: *out = int(k.maxThreads); break;
    case 1: *out = int(k.staticShared); break;
    case 2: *out = 0; break;
    case 3: *out = int(k.localBytes); break;
    case 4: *out = 32; break;
    case 5: case 6: *out = capability().major * 10 + capability().minor; break;
    case 8: *out = int(k.dynamicLimit); break;
    default: *out = 0;
  }
  return CUDA_SUCCESS;
}

CUresult addNode(Node** out, Graph* graph, std::function<CUresult()> run) {
  if (!graph || !out) return CUDA_ERROR_INVALID_VALUE;
  graph->nodes.push_back({std::move(run)});
  *out = &graph->nodes.back();
  return CUDA_SUCCESS;
}

}  // namespace

// ---------------------------------------------------------------------------
// The driver's interface.

#define EXPORT extern "C" __attribute__((visibility("default"))) CUresult

using DevicePointer = u64;

EXPORT cuInit(unsigned flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (deviceCount() == 0) return CUDA_ERROR_NO_DEVICE;
  for (int d = 0; d < kMostDevices; ++d) g_contexts[d].device = d;
  g_initialised = true;
  return CUDA_SUCCESS;
}

EXPORT cuDriverGetVersion(int* version) {
  *version = 12080;
  return CUDA_SUCCESS;
}

EXPORT cuGetErrorName(CUresult code, const char** name) {
  for (const ErrorName& e : kErrors)
    if (e.code == code) return *name = e.name, CUDA_SUCCESS;
  *name = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

EXPORT cuGetErrorString(CUresult code, const char** text) {
  for (const ErrorName& e : kErrors)
    if (e.code == code) return *text = e.text, CUDA_SUCCESS;
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

// --- devices and contexts

EXPORT cuDeviceGetCount(int* count) {
  if (!g_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *count = deviceCount();
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGet(int* device, int ordinal) {
  if (!isDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGetName(char* name, int length, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, size_t(length), "hloracle PTX emulator");
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGetUuid(u8* uuid, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid, "hloracle-ptx-emu", 16);
  uuid[15] = u8('0' + device);
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGetUuid_v2(u8* uuid, int device) { return cuDeviceGetUuid(uuid, device); }

EXPORT cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = Memory::total();
  return CUDA_SUCCESS;
}

EXPORT cuDeviceGetAttribute(int* value, int which, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute(which);
  return CUDA_SUCCESS;
}

EXPORT cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = &g_contexts[device];
  return CUDA_SUCCESS;
}

EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
  return isDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT cuDevicePrimaryCtxReset_v2(int device) {
  std::lock_guard<std::mutex> hold(g_device);
  g_broken = CUDA_SUCCESS;
  return isDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT cuCtxCreate_v2(Context** context, unsigned, int device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = &g_contexts[device];
  t_contexts.push_back(*context);
  return CUDA_SUCCESS;
}

EXPORT cuCtxDestroy_v2(Context* context) {
  if (!t_contexts.empty() && t_contexts.back() == context) t_contexts.pop_back();
  return CUDA_SUCCESS;
}

EXPORT cuCtxPushCurrent_v2(Context* context) {
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  t_contexts.push_back(context);
  return CUDA_SUCCESS;
}

EXPORT cuCtxPopCurrent_v2(Context** context) {
  if (t_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = t_contexts.back();
  t_contexts.pop_back();
  return CUDA_SUCCESS;
}

EXPORT cuCtxSetCurrent(Context* context) {
  if (!t_contexts.empty()) t_contexts.pop_back();
  if (context) t_contexts.push_back(context);
  return CUDA_SUCCESS;
}

EXPORT cuCtxGetCurrent(Context** context) {
  *context = t_contexts.empty() ? nullptr : t_contexts.back();
  return CUDA_SUCCESS;
}

EXPORT cuCtxGetDevice(int* device) {
  if (t_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = currentDevice();
  return CUDA_SUCCESS;
}

EXPORT cuCtxSynchronize() { return g_broken; }

// --- memory

EXPORT cuMemGetInfo_v2(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> hold(g_device);
  *total = Memory::total();
  *free = *total - g_memory.used(currentDevice());
  return CUDA_SUCCESS;
}

EXPORT cuMemAlloc_v2(DevicePointer* out, size_t bytes) {
  return allocateOn(out, bytes, currentDevice());
}
EXPORT cuMemAllocManaged(DevicePointer* out, size_t bytes, unsigned) {
  return allocateOn(out, bytes, currentDevice());
}
EXPORT cuMemAllocAsync(DevicePointer* out, size_t bytes, Stream*) {
  return allocateOn(out, bytes, currentDevice());
}
EXPORT cuMemAllocFromPoolAsync(DevicePointer* out, size_t bytes, Pool* pool, Stream*) {
  return allocateOn(out, bytes, pool ? pool->device : currentDevice());
}
EXPORT cuMemFree_v2(DevicePointer at) { return freeAt(at); }
EXPORT cuMemFreeAsync(DevicePointer at, Stream*) { return freeAt(at); }

EXPORT cuMemPoolCreate(Pool** pool, const void*) {
  *pool = new Pool{currentDevice(), {}};
  return CUDA_SUCCESS;
}
EXPORT cuMemPoolDestroy(Pool* pool) {
  delete pool;
  return CUDA_SUCCESS;
}
EXPORT cuMemPoolSetAttribute(Pool* pool, int which, void* value) {
  pool->attributes[which] = which < 4 ? u64(*static_cast<int*>(value)) : *static_cast<u64*>(value);
  return CUDA_SUCCESS;
}
EXPORT cuMemPoolGetAttribute(Pool* pool, int which, void* value) {
  std::lock_guard<std::mutex> hold(g_device);
  if (which < 4) *static_cast<int*>(value) = int(pool->attributes[which]);
  else *static_cast<u64*>(value) = which == 4 ? pool->attributes[4] : g_memory.used(pool->device);
  return CUDA_SUCCESS;
}
EXPORT cuMemPoolTrimTo(Pool*, size_t) { return CUDA_SUCCESS; }
EXPORT cuMemPoolSetAccess(Pool*, const void*, size_t) { return CUDA_SUCCESS; }

EXPORT cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  u64 at;
  CUresult result = allocateOn(&at, bytes, -1);
  if (!result) *out = reinterpret_cast<void*>(at);
  return result;
}
EXPORT cuMemAllocHost_v2(void** out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
EXPORT cuMemFreeHost(void* at) { return freeAt(u64(at)); }

EXPORT cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> hold(g_device);
  if (!at || !bytes) return CUDA_ERROR_INVALID_VALUE;
  return g_memory.add(u64(at), bytes) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
EXPORT cuMemHostUnregister(void* at) {
  std::lock_guard<std::mutex> hold(g_device);
  return g_memory.remove(u64(at)) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
EXPORT cuMemHostGetDevicePointer_v2(DevicePointer* out, void* at, unsigned) {
  *out = u64(at);
  return CUDA_SUCCESS;
}
EXPORT cuMemPrefetchAsync(DevicePointer, size_t, int, Stream*) { return CUDA_SUCCESS; }

EXPORT cuMemcpy(DevicePointer to, DevicePointer from, size_t n) { return copyBytes(to, from, n); }
EXPORT cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t n, Stream*) {
  return copyBytes(to, from, n);
}
EXPORT cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t n) {
  return copyBytes(to, u64(from), n);
}
EXPORT cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t n, Stream*) {
  return copyBytes(to, u64(from), n);
}
EXPORT cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t n) {
  return copyBytes(u64(to), from, n);
}
EXPORT cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t n, Stream*) {
  return copyBytes(u64(to), from, n);
}
EXPORT cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t n) {
  return copyBytes(to, from, n);
}
EXPORT cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t n, Stream*) {
  return copyBytes(to, from, n);
}
EXPORT cuMemsetD8Async(DevicePointer to, u8 value, size_t n, Stream*) {
  return fillValues(to, value, n);
}
EXPORT cuMemsetD16Async(DevicePointer to, u16 value, size_t n, Stream*) {
  return fillValues(to, value, n);
}
EXPORT cuMemsetD32Async(DevicePointer to, u32 value, size_t n, Stream*) {
  return fillValues(to, value, n);
}
EXPORT cuMemsetD8_v2(DevicePointer to, u8 value, size_t n) { return fillValues(to, value, n); }
EXPORT cuMemsetD16_v2(DevicePointer to, u16 value, size_t n) { return fillValues(to, value, n); }
EXPORT cuMemsetD32_v2(DevicePointer to, u32 value, size_t n) { return fillValues(to, value, n); }

// --- streams and events

EXPORT cuStreamCreate(Stream** stream, unsigned) {
  *stream = new Stream{currentDevice()};
  return CUDA_SUCCESS;
}
EXPORT cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
EXPORT cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  return CUDA_SUCCESS;
}
EXPORT cuStreamSynchronize(Stream*) { return g_broken; }
EXPORT cuStreamQuery(Stream*) { return g_broken; }
EXPORT cuStreamWaitEvent(Stream*, Event*, unsigned) { return g_broken; }

EXPORT cuEventCreate(Event** event, unsigned) {
  *event = new Event;
  return CUDA_SUCCESS;
}
EXPORT cuEventDestroy_v2(Event* event) {
  delete event;
  return CUDA_SUCCESS;
}
EXPORT cuEventRecord(Event* event, Stream*) {
  event->time = Clock::now();
  event->recorded = true;
  return g_broken;
}
EXPORT cuEventQuery(Event*) { return g_broken; }
EXPORT cuEventSynchronize(Event*) { return g_broken; }
EXPORT cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  if (!start->recorded || !end->recorded) return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = float(std::chrono::duration<double>(end->time - start->time).count() * 1e3);
  return CUDA_SUCCESS;
}

EXPORT cuLaunchHostFunc(Stream*, void (*function)(void*), void* data) {
  function(data);
  return CUDA_SUCCESS;
}

// --- modules and kernels

EXPORT cuModuleLoadDataEx(Module** out, const void* image, unsigned, int*, void**) {
  const char* text = static_cast<const char*>(image);
  if (!text || !strstr(text, ".version"))
    return report(CUDA_ERROR_INVALID_IMAGE, "the image is not PTX");
  auto module = std::make_unique<Module>();
  module->text = text;
  std::lock_guard<std::mutex> hold(g_device);
  try {
    loadModule(*module);
  } catch (const Fault& f) {
    freeGlobals(*module);
    return report(f.code, f.what);
  }
  *out = module.release();
  return CUDA_SUCCESS;
}

EXPORT cuModuleLoadData(Module** out, const void* image) {
  return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr);
}

EXPORT cuModuleUnload(Module* module) {
  std::lock_guard<std::mutex> hold(g_device);
  freeGlobals(*module);
  delete module;
  return CUDA_SUCCESS;
}

EXPORT cuModuleGetFunction(Kernel** out, Module* module, const char* name) {
  auto found = module->kernels.find(name);
  if (found == module->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

EXPORT cuModuleGetGlobal_v2(DevicePointer* out, size_t* bytes, Module* module, const char* name) {
  auto found = module->globals.find(name);
  if (found == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (out) *out = found->second.first;
  if (bytes) *bytes = found->second.second;
  return CUDA_SUCCESS;
}

EXPORT cuFuncGetAttribute(int* value, int which, Kernel* kernel) {
  return functionAttribute(*kernel, which, value);
}

EXPORT cuFuncSetAttribute(Kernel* kernel, int which, int value) {
  if (which != 8) return CUDA_SUCCESS;
  if (value < 0 || u64(value) + kernel->staticShared > sharedLimit())
    return CUDA_ERROR_INVALID_VALUE;
  kernel->dynamicLimit = u32(value) + kernel->staticShared;
  return CUDA_SUCCESS;
}

EXPORT cuFuncSetCacheConfig(Kernel*, int) { return CUDA_SUCCESS; }
EXPORT cuFuncSetSharedMemConfig(Kernel*, int) { return CUDA_SUCCESS; }

EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int threads, size_t) {
  *blocks = std::max(1, 2048 / std::max(threads, 1));
  return CUDA_SUCCESS;
}

EXPORT cuLaunchKernel(Kernel* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                      unsigned by, unsigned bz, unsigned sharedBytes, Stream*, void** params,
                      void** extra) {
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<u8> values = gatherParameters(*kernel, params, extra);
  return launchKernel({kernel, {gx, gy, gz}, {bx, by, bz}, sharedBytes, values.data()});
}

// --- graphs

struct KernelNodeParams {
  Kernel* kernel;
  unsigned gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes;
  void** params;
  void** extra;
};

struct Copy3D {
  size_t fromX, fromY, fromZ, fromLod;
  int fromType;
  const void* fromHost;
  DevicePointer fromDevice;
  void *fromArray, *reserved0;
  size_t fromPitch, fromHeight;
  size_t toX, toY, toZ, toLod;
  int toType;
  void* toHost;
  DevicePointer toDevice;
  void *toArray, *reserved1;
  size_t toPitch, toHeight;
  size_t width, height, depth;
};

struct FillParams {
  DevicePointer to;
  size_t pitch;
  unsigned value, elementSize;
  size_t width, height;
};

EXPORT cuGraphCreate(Graph** graph, unsigned) {
  *graph = new Graph;
  return CUDA_SUCCESS;
}

EXPORT cuGraphDestroy(Graph* graph) {
  delete graph;
  return CUDA_SUCCESS;
}

EXPORT cuGraphAddKernelNode(Node** node, Graph* graph, Node* const*, size_t,
                            const KernelNodeParams* p) {
  if (!p || !p->kernel) return CUDA_ERROR_INVALID_VALUE;
  auto values = std::make_shared<std::vector<u8>>(gatherParameters(*p->kernel, p->params, p->extra));
  KernelNodeParams n = *p;
  return addNode(node, graph, [values, n] {
    return launchKernel({n.kernel, {n.gridX, n.gridY, n.gridZ}, {n.blockX, n.blockY, n.blockZ},
                         n.sharedBytes, values->data()});
  });
}

EXPORT cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* after, size_t count,
                               const KernelNodeParams* p) {
  return cuGraphAddKernelNode(node, graph, after, count, p);
}

EXPORT cuGraphAddMemcpyNode(Node** node, Graph* graph, Node* const*, size_t, const Copy3D* p,
                            Context*) {
  if (!p || p->fromType == 3 || p->toType == 3) return CUDA_ERROR_NOT_SUPPORTED;
  Copy3D c = *p;
  return addNode(node, graph, [c] {
    u64 from = (c.fromType == 1 ? u64(c.fromHost) : c.fromDevice) + c.fromX;
    u64 to = (c.toType == 1 ? u64(c.toHost) : c.toDevice) + c.toX;
    for (size_t z = 0; z < c.depth; ++z)
      for (size_t y = 0; y < c.height; ++y) {
        u64 fromRow = (z + c.fromZ) * c.fromHeight + y + c.fromY;
        u64 toRow = (z + c.toZ) * c.toHeight + y + c.toY;
        CUresult result = copyBytes(to + toRow * c.toPitch, from + fromRow * c.fromPitch, c.width);
        if (result) return result;
      }
    return CUDA_SUCCESS;
  });
}

EXPORT cuGraphAddMemsetNode(Node** node, Graph* graph, Node* const*, size_t, const FillParams* p,
                            Context*) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  FillParams f = *p;
  return addNode(node, graph, [f] {
    CUresult result = CUDA_SUCCESS;
    for (size_t row = 0; row < f.height && !result; ++row) {
      u64 to = f.to + row * f.pitch;
      if (f.elementSize == 1) result = fillValues(to, u8(f.value), f.width);
      else if (f.elementSize == 2) result = fillValues(to, u16(f.value), f.width);
      else result = fillValues(to, u32(f.value), f.width);
    }
    return result;
  });
}

EXPORT cuGraphAddEmptyNode(Node** node, Graph* graph, Node* const*, size_t) {
  return addNode(node, graph, [] { return CUDA_SUCCESS; });
}

EXPORT cuGraphAddEventRecordNode(Node** node, Graph* graph, Node* const*, size_t, Event* event) {
  return addNode(node, graph, [event] { return cuEventRecord(event, nullptr); });
}

EXPORT cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
  if (nodes)
    for (size_t n = 0; n < std::min(*count, graph->nodes.size()); ++n) nodes[n] = &graph->nodes[n];
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

EXPORT cuGraphInstantiate(Executable** out, Graph* graph, unsigned long long) {
  *out = new Executable;
  for (const Node& n : graph->nodes) (*out)->steps.push_back(n.run);
  return CUDA_SUCCESS;
}

EXPORT cuGraphInstantiate_v2(Executable** out, Graph* graph, Node**, char*, size_t) {
  return cuGraphInstantiate(out, graph, 0);
}

EXPORT cuGraphInstantiateWithFlags(Executable** out, Graph* graph, unsigned long long flags) {
  return cuGraphInstantiate(out, graph, flags);
}

EXPORT cuGraphLaunch(Executable* executable, Stream*) {
  for (const std::function<CUresult()>& step : executable->steps)
    if (CUresult result = step()) return result;
  return CUDA_SUCCESS;
}

EXPORT cuGraphExecDestroy(Executable* executable) {
  delete executable;
  return CUDA_SUCCESS;
}

// --- finding the functions above

namespace {

struct Entry {
  const char* name;
  void* function;
};

#define PLAIN(name) {#name, reinterpret_cast<void*>(&name)}
#define SECOND(name) {#name, reinterpret_cast<void*>(&name##_v2)}

const Entry kEntries[] = {
    PLAIN(cuInit), PLAIN(cuDriverGetVersion), PLAIN(cuGetErrorName), PLAIN(cuGetErrorString),
    PLAIN(cuDeviceGetCount), PLAIN(cuDeviceGet), PLAIN(cuDeviceGetName), PLAIN(cuDeviceGetUuid),
    SECOND(cuDeviceTotalMem), PLAIN(cuDeviceGetAttribute), PLAIN(cuDevicePrimaryCtxRetain),
    SECOND(cuDevicePrimaryCtxRelease), SECOND(cuDevicePrimaryCtxReset), SECOND(cuCtxCreate),
    SECOND(cuCtxDestroy), SECOND(cuCtxPushCurrent), SECOND(cuCtxPopCurrent),
    PLAIN(cuCtxSetCurrent), PLAIN(cuCtxGetCurrent), PLAIN(cuCtxGetDevice),
    PLAIN(cuCtxSynchronize), SECOND(cuMemGetInfo), SECOND(cuMemAlloc), PLAIN(cuMemAllocManaged),
    PLAIN(cuMemAllocAsync), PLAIN(cuMemAllocFromPoolAsync), SECOND(cuMemFree),
    PLAIN(cuMemFreeAsync), PLAIN(cuMemPoolCreate), PLAIN(cuMemPoolDestroy),
    PLAIN(cuMemPoolSetAttribute), PLAIN(cuMemPoolGetAttribute), PLAIN(cuMemPoolTrimTo),
    PLAIN(cuMemPoolSetAccess), PLAIN(cuMemHostAlloc), SECOND(cuMemAllocHost),
    PLAIN(cuMemFreeHost), SECOND(cuMemHostRegister), PLAIN(cuMemHostUnregister),
    SECOND(cuMemHostGetDevicePointer), PLAIN(cuMemPrefetchAsync), PLAIN(cuMemcpy),
    PLAIN(cuMemcpyAsync), SECOND(cuMemcpyHtoD), SECOND(cuMemcpyHtoDAsync), SECOND(cuMemcpyDtoH),
    SECOND(cuMemcpyDtoHAsync), SECOND(cuMemcpyDtoD), SECOND(cuMemcpyDtoDAsync),
    PLAIN(cuMemsetD8Async), PLAIN(cuMemsetD16Async), PLAIN(cuMemsetD32Async), SECOND(cuMemsetD8),
    SECOND(cuMemsetD16), SECOND(cuMemsetD32), PLAIN(cuStreamCreate),
    PLAIN(cuStreamCreateWithPriority), SECOND(cuStreamDestroy), PLAIN(cuStreamSynchronize),
    PLAIN(cuStreamQuery), PLAIN(cuStreamWaitEvent), PLAIN(cuEventCreate), SECOND(cuEventDestroy),
    PLAIN(cuEventRecord), PLAIN(cuEventQuery), PLAIN(cuEventSynchronize),
    PLAIN(cuEventElapsedTime), PLAIN(cuLaunchHostFunc), PLAIN(cuModuleLoadDataEx),
    PLAIN(cuModuleLoadData), PLAIN(cuModuleUnload), PLAIN(cuModuleGetFunction),
    SECOND(cuModuleGetGlobal), PLAIN(cuFuncGetAttribute), PLAIN(cuFuncSetAttribute),
    PLAIN(cuFuncSetCacheConfig), PLAIN(cuFuncSetSharedMemConfig),
    PLAIN(cuOccupancyMaxActiveBlocksPerMultiprocessor), PLAIN(cuLaunchKernel),
    PLAIN(cuGraphCreate), PLAIN(cuGraphDestroy), PLAIN(cuGraphAddKernelNode),
    PLAIN(cuGraphAddMemcpyNode), PLAIN(cuGraphAddMemsetNode), PLAIN(cuGraphAddEmptyNode),
    PLAIN(cuGraphAddEventRecordNode), PLAIN(cuGraphGetNodes), PLAIN(cuGraphInstantiate),
    PLAIN(cuGraphLaunch), PLAIN(cuGraphExecDestroy),
};

}  // namespace

EXPORT cuGetProcAddress(const char* name, void** out, int, u64) {
  *out = nullptr;
  for (const Entry& e : kEntries)
    if (!strcmp(e.name, name)) return *out = e.function, CUDA_SUCCESS;
  return strcmp(name, "cuGetProcAddress") ? CUDA_ERROR_NOT_FOUND
                                          : (*out = reinterpret_cast<void*>(&cuGetProcAddress),
                                             CUDA_SUCCESS);
}

EXPORT cuGetProcAddress_v2(const char* name, void** out, int version, u64 flags, int* status) {
  CUresult result = cuGetProcAddress(name, out, version, flags);
  if (status) *status = result ? 1 : 0;  // not found, or found
  return result;
}
