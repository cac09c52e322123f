// The machine: number formats, memory, instructions and what they compute.  See driver.cpp.

#pragma once

// A product and a sum are two roundings unless the PTX says fma.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off", "no-math-errno", "no-trapping-math")
#endif

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

// ---------------------------------------------------------------------------
// Driver result codes that are used here, with NVIDIA's numbers.

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801,
};

struct ErrorName {
  CUresult code;
  const char* name;
  const char* text;
};

const ErrorName kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "the PTX was refused by the emulator"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_ILLEGAL_INSTRUCTION, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
     "an illegal instruction was encountered"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

// What went wrong, thrown by the decoder and by running kernels.
struct Fault {
  CUresult code;
  std::string what;
};

std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* pattern, ...) {
  va_list args;
  va_start(args, pattern);
  char text[1024];
  vsnprintf(text, sizeof text, pattern, args);
  va_end(args);
  return text;
}

// One line on stderr, and the code to return.
CUresult report(CUresult code, const std::string& what) {
  fprintf(stderr, "hloracle PTX emulator: %s\n", what.c_str());
  return code;
}

u64 environmentNumber(const char* name, u64 otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

// ---------------------------------------------------------------------------
// Number formats.

template <class To, class From>
inline To bitsAs(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

inline float halfToFloat(u16 h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  float scaled = bitsAs<float>(u32(h & 0x7fffu) << 13) * 0x1p112f;
  u32 bits = bitsAs<u32>(scaled);
  if (scaled >= 65536.0f) bits |= 0x7f800000u;
  return bitsAs<float>(bits | u32(h & 0x8000u) << 16);
#endif
}

inline u16 floatToHalf(float f) {
#if defined(__F16C__)
  return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  u32 bits = bitsAs<u32>(f), sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return u16(sign | 0x7fffu);
  if (bits >= 0x477ff000u) return u16(sign | 0x7c00u);  // rounds to infinity
  if (bits < 0x38800000u)  // subnormal: adding 0.5 lets the unit round
    return u16(sign | (bitsAs<u32>(bitsAs<float>(bits) + 0.5f) - 0x3f000000u));
  return u16(sign | ((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13));
#endif
}

inline float brainToFloat(u16 b) { return bitsAs<float>(u32(b) << 16); }

inline u16 floatToBrain(float f) {
  u32 bits = bitsAs<u32>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return u16((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

struct Half {
  static float load(u16 bits) { return halfToFloat(bits); }
  static u16 store(float value) { return floatToHalf(value); }
};

struct Brain {
  static float load(u16 bits) { return brainToFloat(bits); }
  static u16 store(float value) { return floatToBrain(value); }
};

// Rounding to odd keeps enough of the lost part of a result for a second
// rounding to a narrower format to be right.
double addToOdd(double a, double b) {
  double sum = a + b;
  if (!std::isfinite(sum)) return sum;
  double back = sum - a;
  double lost = (a - (sum - back)) + (b - back);
  u64 bits = bitsAs<u64>(sum);
  if (lost != 0 && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : -1;
  return bitsAs<double>(bits);
}

float floatToOdd(double value) {
  float near = float(value);
  if (!std::isfinite(near) || double(near) == value) return near;
  u32 bits = bitsAs<u32>(near);
  if (std::fabs(double(near)) > std::fabs(value)) --bits;
  return bitsAs<float>(bits | 1u);
}

enum class Round : u32 { Nearest, Zero, Down, Up, Away };

long double roundWhole(long double v, Round mode) {
  switch (mode) {
    case Round::Nearest: return nearbyintl(v);
    case Round::Zero: return truncl(v);
    case Round::Down: return floorl(v);
    case Round::Up: return ceill(v);
    case Round::Away: return roundl(v);
  }
  return v;
}

// v rounded to `digits` significant bits, not below the exponent of the
// smallest subnormal, as a number; beyond `largest` it overflows.
long double roundTo(long double v, int digits, int smallest, long double largest, Round mode) {
  if (v == 0 || !std::isfinite(v)) return v;
  int exponent;
  frexpl(v, &exponent);
  int unit = std::max(exponent - digits, smallest);
  long double rounded = ldexpl(roundWhole(ldexpl(v, -unit), mode), unit);
  if (fabsl(rounded) <= largest) return rounded;
  bool saturates = mode == Round::Zero || (mode == Round::Down && v > 0) ||
                   (mode == Round::Up && v < 0);
  long double limit = saturates ? largest : std::numeric_limits<long double>::infinity();
  return v < 0 ? -limit : limit;
}

// ---------------------------------------------------------------------------
// Types of PTX.

enum class Type : u8 {
  None, Pred, B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64,
  F16, BF16, TF32, F32, F64, F16x2, BF16x2, U16x2, S16x2,
};

struct TypeName {
  const char* name;
  Type type;
  int bytes;
};

const TypeName kTypes[] = {
    {"pred", Type::Pred, 0},    {"b8", Type::B8, 1},       {"b16", Type::B16, 2},
    {"b32", Type::B32, 4},      {"b64", Type::B64, 8},     {"u8", Type::U8, 1},
    {"u16", Type::U16, 2},      {"u32", Type::U32, 4},     {"u64", Type::U64, 8},
    {"s8", Type::S8, 1},        {"s16", Type::S16, 2},     {"s32", Type::S32, 4},
    {"s64", Type::S64, 8},      {"f16", Type::F16, 2},     {"bf16", Type::BF16, 2},
    {"tf32", Type::TF32, 4},    {"f32", Type::F32, 4},     {"f64", Type::F64, 8},
    {"f16x2", Type::F16x2, 4},  {"bf16x2", Type::BF16x2, 4}, {"u16x2", Type::U16x2, 4},
    {"s16x2", Type::S16x2, 4},
};

Type typeNamed(std::string_view name) {
  for (const TypeName& t : kTypes)
    if (name == t.name) return t.type;
  return Type::None;
}

int bytesOf(Type type) {
  for (const TypeName& t : kTypes)
    if (t.type == type) return t.bytes;
  return 0;
}

bool isSigned(Type t) {
  return t == Type::S8 || t == Type::S16 || t == Type::S32 || t == Type::S64;
}

bool isFloat(Type t) {
  return t == Type::F16 || t == Type::BF16 || t == Type::TF32 || t == Type::F32 ||
         t == Type::F64 || t == Type::F16x2 || t == Type::BF16x2;
}

// ---------------------------------------------------------------------------
// Device memory: every range that a kernel may touch, by address.

struct Range {
  u64 lo = ~u64(0), hi = 64;  // a range that holds no address
  bool holds(u64 address, u64 bytes) const {
    return address >= lo && address <= hi - bytes;
  }
};

struct Allocation {
  u64 bytes;
  int device;      // -1: host memory that kernels may use
  bool owned;      // freed by this library
};

class Memory {
 public:
  // The range that holds the address, or one that holds nothing.
  Range find(u64 address) const {
    auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin()) return {};
    --next;
    if (address >= next->first + next->second.bytes) return {};
    return {next->first, next->first + next->second.bytes};
  }

  // Device memory (device >= 0) or pinned host memory (device -1); null if the
  // device has no room.
  void* allocate(u64 bytes, int device) {
    u64 room = (bytes + 255) / 256 * 256;
    if (device >= 0) {
      if (room < bytes || used_[device] + room > total()) return nullptr;
    }
    void* block = aligned_alloc(256, room + kApart);
    if (!block) return nullptr;
    memset(block, 0xff, room);
    if (device >= 0) used_[device] += room;
    ranges_[u64(block)] = {bytes, device, true};
    return block;
  }

  bool release(u64 address) {
    auto at = ranges_.find(address);
    if (at == ranges_.end() || !at->second.owned) return false;
    if (at->second.device >= 0) used_[at->second.device] -= (at->second.bytes + 255) / 256 * 256;
    ranges_.erase(at);
    free(reinterpret_cast<void*>(address));
    return true;
  }

  bool add(u64 address, u64 bytes) {
    return ranges_.insert({address, {bytes, -1, false}}).second;
  }

  bool remove(u64 address) {
    auto at = ranges_.find(address);
    if (at == ranges_.end() || at->second.owned) return false;
    ranges_.erase(at);
    return true;
  }

  u64 used(int device) { return used_[device]; }

  static u64 total() {
    return environmentNumber("HLORACLE_EMULATED_MEMORY", u64(8) << 30);
  }

 private:
  // Left free after each allocation, so that running over its end shows.
  static constexpr u64 kApart = 4096;
  std::map<u64, Allocation> ranges_;
  std::map<int, u64> used_;
};

// Guards the memory table and keeps launches one after another.
std::mutex g_device;
Memory g_memory;

// ---------------------------------------------------------------------------
// The machine: decoded instructions, warps, and the worker that runs blocks.

constexpr int kLanes = 32;
constexpr u32 kAllLanes = 0xffffffffu;
constexpr u32 kNone = 0xffffffffu;  // no register

struct Warp;
struct Ins;

// Runs one instruction for the active lanes and returns the next one.
using Handler = const Ins* (*)(Warp&, const Ins*);

enum class Space : u32 { Generic, Global, Shared, Local, Param };

struct Ins {
  Handler full = nullptr;  // used while all 32 lanes are active
  Handler part = nullptr;  // used while some are
  u32 r[8] = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
  union {
    s64 imm = 0;        // address offset or other number
    const Ins* target;  // of a branch
    const u32* list;    // registers beyond r
  };
  u32 a0 = 0, a1 = 0;  // meaning depends on the handler
};
static_assert(sizeof(Ins) == 64);

enum class State { Ready, Parked, Barrier };

// Lanes of a warp that stand at the same instruction.
struct Group {
  const Ins* pc;
  u32 mask;
  State state;
  u32 barrier;   // number of the barrier, if State::Barrier
  u32 expected;  // threads that the barrier waits for (0 for all); lanes, if parked
};

struct Kernel;
struct Worker;

struct Warp {
  u8* registers;
  u32 mask;         // active lanes
  const Ins* stop;  // where other lanes wait: do not run past it
  u32 live;         // lanes that have not exited
  u32 carry;        // of add.cc and its like
  Range* cache;     // per instruction, the range of its last access
  const Ins* code;
  Worker* worker;
  u32 index;  // of the warp in the block
  std::vector<Group> groups;
};

template <class T>
inline T* lanesOf(const Warp& w, u32 offset) {
  return reinterpret_cast<T*>(__builtin_assume_aligned(w.registers + offset, 64));
}

inline u32& predicate(const Warp& w, u32 offset) {
  return *reinterpret_cast<u32*>(w.registers + offset);
}

struct Bits {
  u32 of[kLanes];
  constexpr Bits() : of() {
    for (int l = 0; l < kLanes; ++l) of[l] = 1u << l;
  }
};
constexpr Bits kBit;

// Calls f for each active lane.
template <bool Full, class F>
inline __attribute__((always_inline)) void eachLane(const Warp& w, F f) {
  if constexpr (Full) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; ++l) f(l);
  } else {
    for (u32 m = w.mask; m; m &= m - 1) f(__builtin_ctz(m));
  }
}

// ---------------------------------------------------------------------------
// Kernels and modules.

enum class Special : u8 {
  TidX, TidY, TidZ, NtidX, NtidY, NtidZ, CtaidX, CtaidY, CtaidZ, NctaidX, NctaidY, NctaidZ,
  LaneId, WarpId, NWarpId, LaneEq, LaneLt, LaneLe, LaneGt, LaneGe, SmId, NSmId, DynamicShared,
  TotalShared, GridId,
  SharedAddress, DynamicAddress, LocalAddress, ParamAddress,  // plus a constant
};

// A register that is filled before the kernel starts.
struct Preset {
  u32 reg;
  u8 bytes;          // of the register, 0 for a predicate
  bool constant;     // value, else special + value
  Special special;
  u64 value;
};

struct Parameter {
  std::string_view name;
  u32 offset, bytes;
};

struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;
  u32 parameterBytes = 0;
  std::vector<Ins> code;
  std::vector<std::string_view> text;  // source of each instruction
  std::deque<std::vector<u32>> lists;  // what Ins::list points to
  std::vector<Preset> presets;
  u32 registerBytes = 0;
  u32 localBytes = 0;
  u32 staticShared = 0;
  u32 maxThreads = 1024;
  u32 required[3] = {0, 0, 0};
  u32 dynamicLimit = 48 << 10;
};

struct Worker {
  const Kernel* kernel = nullptr;
  std::vector<Warp> warps;
  std::vector<Range> cache;
  u8* registers = nullptr;
  u64 registerRoom = 0;
  u8* shared = nullptr;  // below 4 GiB, so that 32-bit shared addresses work
  u8* local = nullptr;
  u64 localRoom = 0;
  const u8* params = nullptr;
  u32 sharedBytes = 0, dynamicBytes = 0;
  u32 block[3], grid[3], threads, ctaid[3];
  u64 executed = 0;

  u8* localOf(const Warp& w, int lane) const {
    return local + (u64(w.index) * kLanes + lane) * kernel->localBytes;
  }
};

constexpr u32 kSharedRoom = 256 << 10;

std::string describe(const Warp& w, const Ins* i, int lane) {
  const Worker& k = *w.worker;
  u32 t = w.index * kLanes + lane;
  std::string_view text = k.kernel->text[i - w.code];
  return format("kernel %s: \"%.*s\" in thread (%u,%u,%u) of block (%u,%u,%u)",
                k.kernel->name.c_str(), int(text.size()), text.data(), t % k.block[0],
                t / k.block[0] % k.block[1], t / k.block[0] / k.block[1], k.ctaid[0], k.ctaid[1],
                k.ctaid[2]);
}

[[noreturn]] void fail(CUresult code, const Warp& w, const Ins* i, int lane,
                       const std::string& what) {
  throw Fault{code, describe(w, i, lane) + ": " + what};
}

// ---------------------------------------------------------------------------
// What instructions compute, for one lane.  Integer sums use unsigned types.

struct Add { template <class T> static T f(T a, T b) { return T(a + b); } };
struct Sub { template <class T> static T f(T a, T b) { return T(a - b); } };
struct Mul { template <class T> static T f(T a, T b) { return T(a * b); } };
struct MulLow {  // 16-bit factors are promoted to int, which could overflow
  template <class T> static T f(T a, T b) { return T(u64(a) * u64(b)); }
};
struct MadLow {
  template <class T> static T f(T a, T b, T c) { return T(MulLow::f(a, b) + c); }
};

template <class T> struct Wider;
template <> struct Wider<u16> { using type = u32; };
template <> struct Wider<s16> { using type = s32; };
template <> struct Wider<u32> { using type = u64; };
template <> struct Wider<s32> { using type = s64; };
template <> struct Wider<u64> { using type = unsigned __int128; };
template <> struct Wider<s64> { using type = __int128; };

struct MulHigh {
  template <class T> static T f(T a, T b) {
    using W = typename Wider<T>::type;
    return T((W(a) * W(b)) >> (8 * sizeof(T)));
  }
};
struct MadHigh {
  template <class T> static T f(T a, T b, T c) {
    return T(std::make_unsigned_t<T>(MulHigh::f(a, b)) + std::make_unsigned_t<T>(c));
  }
};
struct DivInt {  // a division by zero gives all ones
  template <class T> static T f(T a, T b) {
    if (b == 0) return T(~T(0));
    if (std::is_signed_v<T> && b == T(-1)) return T(0 - std::make_unsigned_t<T>(a));
    return T(a / b);
  }
};
struct RemInt {
  template <class T> static T f(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
struct MinInt { template <class T> static T f(T a, T b) { return a < b ? a : b; } };
struct MaxInt { template <class T> static T f(T a, T b) { return a > b ? a : b; } };
struct AbsInt {
  template <class T> static T f(T a) { return a < 0 ? T(0 - std::make_unsigned_t<T>(a)) : a; }
};
struct NegInt {
  template <class T> static T f(T a) { return T(0 - std::make_unsigned_t<T>(a)); }
};
struct Sad {
  template <class T> static T f(T a, T b, T c) {
    using U = std::make_unsigned_t<T>;
    return T(U(c) + (a < b ? U(b) - U(a) : U(a) - U(b)));
  }
};
struct AddSat {
  static s32 f(s32 a, s32 b) { return s32(std::clamp<s64>(s64(a) + b, INT32_MIN, INT32_MAX)); }
};
struct SubSat {
  static s32 f(s32 a, s32 b) { return s32(std::clamp<s64>(s64(a) - b, INT32_MIN, INT32_MAX)); }
};
struct And { template <class T> static T f(T a, T b) { return a & b; } };
struct Or { template <class T> static T f(T a, T b) { return a | b; } };
struct Xor { template <class T> static T f(T a, T b) { return a ^ b; } };
struct Not { template <class T> static T f(T a) { return T(~a); } };
struct CNot { template <class T> static T f(T a) { return T(a == 0); } };
struct Move { template <class T> static T f(T a) { return a; } };
struct Shl {
  template <class T> static T f(T a, u32 n) { return n < 8 * sizeof(T) ? T(a << n) : T(0); }
};
struct Shr {
  template <class T> static T f(T a, u32 n) {
    constexpr u32 width = 8 * sizeof(T);
    if constexpr (std::is_signed_v<T>) return T(a >> (n < width ? n : width - 1));
    return n < width ? T(a >> n) : T(0);
  }
};
template <bool Wrap>
struct FunnelLeft {
  static u32 f(u32 lo, u32 hi, u32 n) {
    n = Wrap ? n & 31 : std::min(n, 32u);
    return u32((u64(hi) << 32 | lo) << n >> 32);
  }
};
template <bool Wrap>
struct FunnelRight {
  static u32 f(u32 lo, u32 hi, u32 n) {
    n = Wrap ? n & 31 : std::min(n, 32u);
    return u32((u64(hi) << 32 | lo) >> n);
  }
};
struct PopCount { template <class T> static u32 f(T a) { return u32(__builtin_popcountll(a)); } };
struct CountZeros {
  template <class T> static u32 f(T a) {
    return a ? u32(__builtin_clzll(a)) - (64 - 8 * sizeof(T)) : 8 * sizeof(T);
  }
};
template <bool ShiftAmount>
struct FindBit {
  template <class T> static u32 f(T a) {
    using U = std::make_unsigned_t<T>;
    U u = a < 0 ? U(~a) : U(a);
    if (!u) return 0xffffffffu;
    u32 bit = 63 - u32(__builtin_clzll(u));
    return ShiftAmount ? u32(8 * sizeof(T) - 1) - bit : bit;
  }
};
struct Reverse {
  template <class T> static T f(T a) {
    T result = 0;
    for (size_t k = 0; k < 8 * sizeof(T); ++k, a = T(a >> 1)) result = T(result << 1 | (a & 1));
    return result;
  }
};
struct ExtractField {
  template <class T> static T f(T a, u32 position, u32 length) {
    using U = std::make_unsigned_t<T>;
    constexpr u32 width = 8 * sizeof(T);
    position &= 255, length &= 255;
    if (length == 0) return 0;
    U field = position < width ? U(U(a) >> position) : U(0);
    U ones = length < width ? U((U(1) << length) - 1) : U(~U(0));
    u32 last = std::min(position + length - 1, width - 1);
    bool negative = std::is_signed_v<T> && (U(a) >> last & 1);
    u32 valid = position < width ? std::min(length, width - position) : 0;
    U present = valid < width ? U((U(1) << valid) - 1) : U(~U(0));
    return T(negative ? (field & ones & present) | U(~present) : (field & ones));
  }
};
struct InsertField {
  template <class T> static T f(T a, T b, u32 position, u32 length) {
    constexpr u32 width = 8 * sizeof(T);
    position &= 255, length &= 255;
    if (position >= width || length == 0) return b;
    T ones = length < width ? T((T(1) << length) - 1) : T(~T(0));
    return T((b & T(~T(ones << position))) | T((a & ones) << position));
  }
};
struct Permute {
  static u32 f(u32 a, u32 b, u32 selectors) {
    u64 bytes = u64(b) << 32 | a;
    u32 result = 0;
    for (int k = 0; k < 4; ++k) {
      u32 selector = selectors >> (4 * k) & 15;
      u32 byte = u32(bytes >> (8 * (selector & 7))) & 255;
      if (selector & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * k);
    }
    return result;
  }
};
enum class PermuteMode { F4e, B4e, Rc8, Ecl, Ecr, Rc16 };
template <PermuteMode Mode>
struct PermuteBy {
  static u32 f(u32 a, u32 b, u32 c) {
    int s = int(c & 3);
    u64 bytes = u64(b) << 32 | a;
    u32 result = 0;
    for (int k = 0; k < 4; ++k) {
      int from = 0;
      switch (Mode) {
        case PermuteMode::F4e: from = s + k; break;
        case PermuteMode::B4e: from = (s - k) & 7; break;
        case PermuteMode::Rc8: from = s; break;
        case PermuteMode::Ecl: from = std::max(s, k); break;
        case PermuteMode::Ecr: from = std::min(s, k); break;
        case PermuteMode::Rc16: from = (s & 1) * 2 + (k & 1); break;
      }
      result |= (u32(bytes >> (8 * from)) & 255) << (8 * k);
    }
    return result;
  }
};
template <class A, class B>
struct DotBytes {
  static u32 f(u32 a, u32 b, u32 c) {
    for (int k = 0; k < 4; ++k) c += u32(s32(A(a >> (8 * k))) * s32(B(b >> (8 * k))));
    return c;
  }
};

// Floating point.
struct Div { template <class T> static T f(T a, T b) { return a / b; } };
struct Fma { template <class T> static T f(T a, T b, T c) { return std::fma(a, b, c); } };
template <class T> using BitsOf = std::conditional_t<sizeof(T) == 4, u32, u64>;
struct MinFloat {  // a NaN yields to a number, and -0 is below +0
  template <class T> static T f(T a, T b) {
    if (a < b) return a;
    if (b < a) return b;
    if (a == b) return bitsAs<T>(BitsOf<T>(bitsAs<BitsOf<T>>(a) | bitsAs<BitsOf<T>>(b)));
    return a != a ? b : a;
  }
};
struct MaxFloat {
  template <class T> static T f(T a, T b) {
    if (a > b) return a;
    if (b > a) return b;
    if (a == b) return bitsAs<T>(BitsOf<T>(bitsAs<BitsOf<T>>(a) & bitsAs<BitsOf<T>>(b)));
    return a != a ? b : a;
  }
};
struct MinNan {
  template <class T> static T f(T a, T b) { return a != a ? a : b != b ? b : MinFloat::f(a, b); }
};
struct MaxNan {
  template <class T> static T f(T a, T b) { return a != a ? a : b != b ? b : MaxFloat::f(a, b); }
};
struct AbsFloat {
  template <class T> static T f(T a) {
    return bitsAs<T>(BitsOf<T>(bitsAs<BitsOf<T>>(a) & (BitsOf<T>(~BitsOf<T>(0)) >> 1)));
  }
};
struct NegFloat {
  template <class T> static T f(T a) {
    return bitsAs<T>(BitsOf<T>(bitsAs<BitsOf<T>>(a) ^ ~(BitsOf<T>(~BitsOf<T>(0)) >> 1)));
  }
};
struct CopySign {  // PTX has the sign first
  template <class T> static T f(T a, T b) { return std::copysign(b, a); }
};
struct Reciprocal { template <class T> static T f(T a) { return T(1) / a; } };
struct Sqrt { template <class T> static T f(T a) { return std::sqrt(a); } };
struct ReciprocalSqrt {
  template <class T> static T f(T a) { return T(1.0 / std::sqrt(double(a))); }
};
struct Sin { template <class T> static T f(T a) { return T(std::sin(double(a))); } };
struct Cos { template <class T> static T f(T a) { return T(std::cos(double(a))); } };
struct Log2 { template <class T> static T f(T a) { return T(std::log2(double(a))); } };
struct Exp2 { template <class T> static T f(T a) { return T(std::exp2(double(a))); } };
struct Tanh { template <class T> static T f(T a) { return T(std::tanh(double(a))); } };

inline float flush(float a) {
  u32 bits = bitsAs<u32>(a);
  return bits & 0x7f800000u ? a : bitsAs<float>(bits & 0x80000000u);
}
template <class Op>
struct Ftz {  // subnormal arguments and results become zero
  template <class... T> static float f(T... a) { return flush(Op::f(flush(a)...)); }
};
template <class Op>
struct Sat {  // results clamped to 0..1, NaN to 0
  template <class... T> static float f(T... a) {
    float value = Op::f(a...);
    return value > 0 ? (value < 1 ? value : 1.0f) : 0.0f;
  }
};
template <class Op, class Format>
struct Narrow {  // 16-bit floats by way of float
  template <class... T> static u16 f(T... a) { return Format::store(Op::f(Format::load(a)...)); }
};
template <class Format>
struct Narrow<Fma, Format> {
  static u16 f(u16 a, u16 b, u16 c) {
    double product = double(Format::load(a)) * double(Format::load(b));
    return Format::store(floatToOdd(addToOdd(product, Format::load(c))));
  }
};
template <class Format>
struct Narrow<AbsFloat, Format> { static u16 f(u16 a) { return a & 0x7fff; } };
template <class Format>
struct Narrow<NegFloat, Format> { static u16 f(u16 a) { return a ^ 0x8000; } };
template <class Op>
struct Twice {  // the two 16-bit halves of a word
  template <class... T> static u32 f(T... a) {
    return u32(Op::f(u16(a)...)) | u32(Op::f(u16(a >> 16)...)) << 16;
  }
};
template <class Op>
struct TwiceSigned {
  static u32 f(u32 a, u32 b) {
    return u32(u16(Op::f(s16(a), s16(b)))) | u32(u16(Op::f(s16(a >> 16), s16(b >> 16)))) << 16;
  }
};

// Comparisons.
struct Eq { template <class T> static bool f(T a, T b) { return a == b; } };
struct Ne { template <class T> static bool f(T a, T b) { return a != b && a == a && b == b; } };
struct NeInt { template <class T> static bool f(T a, T b) { return a != b; } };
struct Lt { template <class T> static bool f(T a, T b) { return a < b; } };
struct Le { template <class T> static bool f(T a, T b) { return a <= b; } };
struct Gt { template <class T> static bool f(T a, T b) { return a > b; } };
struct Ge { template <class T> static bool f(T a, T b) { return a >= b; } };
struct EqU { template <class T> static bool f(T a, T b) { return !(a < b || a > b); } };
struct NeU { template <class T> static bool f(T a, T b) { return !(a == b); } };
struct LtU { template <class T> static bool f(T a, T b) { return !(a >= b); } };
struct LeU { template <class T> static bool f(T a, T b) { return !(a > b); } };
struct GtU { template <class T> static bool f(T a, T b) { return !(a <= b); } };
struct GeU { template <class T> static bool f(T a, T b) { return !(a < b); } };
struct Num { template <class T> static bool f(T a, T b) { return a == a && b == b; } };
struct NaN { template <class T> static bool f(T a, T b) { return a != a || b != b; } };
template <class Op>
struct FtzTest { static bool f(float a, float b) { return Op::f(flush(a), flush(b)); } };
template <class Op, class Format>
struct NarrowTest {
  static bool f(u16 a, u16 b) { return Op::f(Format::load(a), Format::load(b)); }
};

}  // namespace
