#pragma once

#include "machine.h"

namespace {

// ---------------------------------------------------------------------------
// Handlers of instructions that work lane by lane.  r[0] is the destination.

template <class Op, class D, class A, bool Full>
const Ins* unary(Warp& w, const Ins* i) {
  D* d = lanesOf<D>(w, i->r[0]);
  const A* a = lanesOf<A>(w, i->r[1]);
  eachLane<Full>(w, [=](int l) { d[l] = D(Op::f(a[l])); });
  return i + 1;
}

template <class Op, class D, class A, class B, bool Full>
const Ins* binary(Warp& w, const Ins* i) {
  D* d = lanesOf<D>(w, i->r[0]);
  const A* a = lanesOf<A>(w, i->r[1]);
  const B* b = lanesOf<B>(w, i->r[2]);
  eachLane<Full>(w, [=](int l) { d[l] = D(Op::f(a[l], b[l])); });
  return i + 1;
}

template <class Op, class D, class A, class B, class C, bool Full>
const Ins* ternary(Warp& w, const Ins* i) {
  D* d = lanesOf<D>(w, i->r[0]);
  const A* a = lanesOf<A>(w, i->r[1]);
  const B* b = lanesOf<B>(w, i->r[2]);
  const C* c = lanesOf<C>(w, i->r[3]);
  eachLane<Full>(w, [=](int l) { d[l] = D(Op::f(a[l], b[l], c[l])); });
  return i + 1;
}

template <class T, bool Full>
const Ins* insertField(Warp& w, const Ins* i) {
  T* d = lanesOf<T>(w, i->r[0]);
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  const u32 *c = lanesOf<u32>(w, i->r[3]), *e = lanesOf<u32>(w, i->r[4]);
  eachLane<Full>(w, [=](int l) { d[l] = InsertField::f(a[l], b[l], c[l], e[l]); });
  return i + 1;
}

template <class T, class Wide, bool Full>
const Ins* mulWide(Warp& w, const Ins* i) {
  Wide* d = lanesOf<Wide>(w, i->r[0]);
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  eachLane<Full>(w, [=](int l) { d[l] = Wide(a[l]) * Wide(b[l]); });
  return i + 1;
}

template <class T, class Wide, bool Full>
const Ins* madWide(Warp& w, const Ins* i) {
  using U = std::make_unsigned_t<Wide>;
  U* d = lanesOf<U>(w, i->r[0]);
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  const U* c = lanesOf<U>(w, i->r[3]);
  eachLane<Full>(w, [=](int l) { d[l] = U(Wide(a[l]) * Wide(b[l])) + c[l]; });
  return i + 1;
}

// d = op(a, b, c) by the truth table in a0.
template <bool Full>
const Ins* lop3(Warp& w, const Ins* i) {
  u32* d = lanesOf<u32>(w, i->r[0]);
  const u32 *a = lanesOf<u32>(w, i->r[1]), *b = lanesOf<u32>(w, i->r[2]);
  const u32* c = lanesOf<u32>(w, i->r[3]);
  u32 table = i->a0;
  eachLane<Full>(w, [=](int l) {
    u32 result = 0;
    for (int k = 0; k < 8; ++k)
      if (table >> k & 1)
        result |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    d[l] = result;
  });
  return i + 1;
}

// Sums with carry: a0 bit 0 subtracts, bit 1 takes the carry, bit 2 leaves one.
template <class T>
const Ins* carrySum(Warp& w, const Ins* i) {
  T* d = lanesOf<T>(w, i->r[0]);
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  eachLane<false>(w, [&](int l) {
    u32 in = i->a0 & 2 ? w.carry >> l & 1 : 0;
    unsigned __int128 sum = i->a0 & 1 ? (unsigned __int128)a[l] - b[l] - in
                                      : (unsigned __int128)a[l] + b[l] + in;
    d[l] = T(sum);
    if (i->a0 & 4) w.carry = (w.carry & ~kBit.of[l]) | u32(sum >> (8 * sizeof(T)) & 1) << l;
  });
  return i + 1;
}

// Arithmetic in a rounding direction other than to nearest; a0 is the Round.
template <class Op, class T, int Arguments>
const Ins* directed(Warp& w, const Ins* i) {
  T* d = lanesOf<T>(w, i->r[0]);
  const T* a = lanesOf<T>(w, i->r[1]);
  const T* b = Arguments > 1 ? lanesOf<T>(w, i->r[2]) : a;
  const T* c = Arguments > 2 ? lanesOf<T>(w, i->r[3]) : a;
  Round mode = Round(i->a0);
  fesetround(mode == Round::Zero ? FE_TOWARDZERO : mode == Round::Down ? FE_DOWNWARD : FE_UPWARD);
  eachLane<false>(w, [&](int l) {
    volatile T x = a[l], y = b[l], z = c[l];
    volatile T result;
    if constexpr (Arguments == 1) result = Op::f(T(x));
    if constexpr (Arguments == 2) result = Op::f(T(x), T(y));
    if constexpr (Arguments == 3) result = Op::f(T(x), T(y), T(z));
    d[l] = result;
  });
  fesetround(FE_TONEAREST);
  return i + 1;
}

// Predicates are masks with a bit for each lane.
inline void setPredicate(const Warp& w, u32 reg, u32 bits) {
  u32& p = predicate(w, reg);
  p = (p & ~w.mask) | (bits & w.mask);
}

enum class Join : u32 { None, And, Or, Xor };

inline u32 join(Join how, u32 a, u32 b) {
  switch (how) {
    case Join::And: return a & b;
    case Join::Or: return a | b;
    case Join::Xor: return a ^ b;
    case Join::None: break;
  }
  return a;
}

// r: p, a, b, q or none, c or none; a0 is the Join with c, a1 the mask that
// negates c.
template <class Op, class T, bool Full>
const Ins* compare(Warp& w, const Ins* i) {
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  u32 bits = 0;
  if constexpr (Full) {
    for (int l = 0; l < kLanes; ++l) bits |= Op::f(a[l], b[l]) ? kBit.of[l] : 0;
  } else {
    eachLane<false>(w, [&](int l) { bits |= Op::f(a[l], b[l]) ? kBit.of[l] : 0; });
  }
  u32 c = i->r[4] == kNone ? 0 : predicate(w, i->r[4]) ^ i->a1;
  setPredicate(w, i->r[0], join(Join(i->a0), bits, c));
  if (i->r[3] != kNone) setPredicate(w, i->r[3], join(Join(i->a0), ~bits, c));
  return i + 1;
}

// d = p ? a : b; a1 negates p.
template <class T, bool Full>
const Ins* select(Warp& w, const Ins* i) {
  T* d = lanesOf<T>(w, i->r[0]);
  const T *a = lanesOf<T>(w, i->r[1]), *b = lanesOf<T>(w, i->r[2]);
  u32 p = predicate(w, i->r[3]) ^ i->a1;
  eachLane<Full>(w, [=](int l) { d[l] = p & kBit.of[l] ? a[l] : b[l]; });
  return i + 1;
}

// Logic on predicates: a0 is the Join, a1 negates the first, imm the result.
const Ins* predicateLogic(Warp& w, const Ins* i) {
  u32 a = predicate(w, i->r[1]) ^ i->a1;
  u32 b = i->r[2] == kNone ? 0 : predicate(w, i->r[2]);
  setPredicate(w, i->r[0], join(Join(i->a0), a, b) ^ u32(i->imm));
  return i + 1;
}

// Packing of a register from parts, and unpacking into parts (r[k] may be none).
template <class Whole, class Part, bool Full>
const Ins* pack(Warp& w, const Ins* i) {
  constexpr int count = sizeof(Whole) / sizeof(Part);
  Whole* d = lanesOf<Whole>(w, i->r[0]);
  const Part* parts[count];
  for (int k = 0; k < count; ++k) parts[k] = lanesOf<Part>(w, i->r[1 + k]);
  eachLane<Full>(w, [=](int l) {
    Whole value = 0;
    for (int k = 0; k < count; ++k) value |= Whole(parts[k][l]) << (8 * sizeof(Part) * k);
    d[l] = value;
  });
  return i + 1;
}

template <class Whole, class Part, bool Full>
const Ins* unpack(Warp& w, const Ins* i) {
  constexpr int count = sizeof(Whole) / sizeof(Part);
  const Whole* a = lanesOf<Whole>(w, i->r[0]);
  for (int k = 0; k < count; ++k) {
    if (i->r[1 + k] == kNone) continue;
    Part* d = lanesOf<Part>(w, i->r[1 + k]);
    eachLane<Full>(w, [=](int l) { d[l] = Part(a[l] >> (8 * sizeof(Part) * k)); });
  }
  return i + 1;
}

// ---------------------------------------------------------------------------
// Conversions.  The common ones have handlers of their own.

template <class D, class S>
struct IntToInt {  // registers are never narrower than 16 bits
  template <class T> static auto f(T a) { return D(S(a)); }
};

template <class D>
struct FloatToIntLimits {
  static D clamp(double v) {
    if (v != v) return 0;
    if (v <= double(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (v >= double(std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    return D(v);
  }
};

template <Round Mode>
struct WholeFloat {
  template <class T> static T f(T a) {
    switch (Mode) {
      case Round::Nearest: return std::nearbyint(a);
      case Round::Zero: return std::trunc(a);
      case Round::Down: return std::floor(a);
      case Round::Up: return std::ceil(a);
      case Round::Away: return std::round(a);
    }
    return a;
  }
};

template <class D, Round Mode>
struct FloatToInt {
  static D f(float a) { return FloatToIntLimits<D>::clamp(WholeFloat<Mode>::f(a)); }
};

template <class D>
struct Cast { template <class T> static D f(T a) { return D(a); } };

struct LoadHalf { static float f(u16 a) { return halfToFloat(a); } };
struct LoadBrain { static float f(u16 a) { return brainToFloat(a); } };
struct StoreHalf { static u16 f(float a) { return floatToHalf(a); } };
struct StoreBrain { static u16 f(float a) { return floatToBrain(a); } };

u64 readLane(const Warp& w, u32 reg, u32 bytes, int lane) {
  switch (bytes) {
    case 2: return lanesOf<u16>(w, reg)[lane];
    case 4: return lanesOf<u32>(w, reg)[lane];
    default: return lanesOf<u64>(w, reg)[lane];
  }
}

void writeLane(const Warp& w, u32 reg, u32 bytes, int lane, u64 value) {
  switch (bytes) {
    case 2: lanesOf<u16>(w, reg)[lane] = u16(value); break;
    case 4: lanesOf<u32>(w, reg)[lane] = u32(value); break;
    default: lanesOf<u64>(w, reg)[lane] = value; break;
  }
}

// How a general conversion is done: packed into Ins::imm.
struct Conversion {
  Type to, from;
  u8 toBytes, fromBytes;  // of the registers
  Round round;
  bool saturate, ftz, whole, relu;
};

u64 lowBits(u64 value, int bytes) {
  return bytes == 8 ? value : value & ((u64(1) << (8 * bytes)) - 1);
}

s64 signedBits(u64 value, int bytes) {
  int unused = 64 - 8 * bytes;
  return s64(value << unused) >> unused;
}

long double numberFrom(Type type, u64 bits) {
  switch (type) {
    case Type::F16: return halfToFloat(u16(bits));
    case Type::BF16: return brainToFloat(u16(bits));
    case Type::TF32:
    case Type::F32: return bitsAs<float>(u32(bits));
    case Type::F64: return bitsAs<double>(bits);
    default: break;
  }
  if (isSigned(type)) return signedBits(bits, bytesOf(type));
  return lowBits(bits, bytesOf(type));
}

u64 floatBits(Type type, long double v, Round mode) {
  switch (type) {
    case Type::F16: return floatToHalf(float(roundTo(v, 11, -24, 65504.0L, mode)));
    case Type::BF16: return floatToBrain(float(roundTo(v, 8, -133, 0x1.fep127L, mode)));
    case Type::TF32: return bitsAs<u32>(float(roundTo(v, 11, -136, 0x1.ffcp127L, mode)));
    case Type::F32: return bitsAs<u32>(float(roundTo(v, 24, -149, 0x1.fffffep127L, mode)));
    default:
      return bitsAs<u64>(double(roundTo(v, 53, -1074, 0x1.fffffffffffffp1023L, mode)));
  }
}

u64 intBits(Type type, long double v) {
  if (v != v) return 0;
  int bits = 8 * bytesOf(type);
  long double lo = isSigned(type) ? -ldexpl(1, bits - 1) : 0;
  long double hi = ldexpl(1, isSigned(type) ? bits - 1 : bits) - 1;
  v = std::min(std::max(v, lo), hi);
  return isSigned(type) ? u64(s64(v)) : u64(v);
}

u64 convert(const Conversion& c, u64 bits) {
  if (!isFloat(c.to) && !isFloat(c.from) && !c.saturate)
    return isSigned(c.from) ? u64(signedBits(bits, bytesOf(c.from)))
                            : lowBits(bits, bytesOf(c.from));
  long double v = numberFrom(c.from, bits);
  if (c.ftz && c.from == Type::F32) v = flush(float(v));
  if (!isFloat(c.to)) return intBits(c.to, isFloat(c.from) ? roundWhole(v, c.round) : v);
  if (c.whole) v = roundWhole(v, c.round);
  if (c.saturate) v = v > 0 ? std::min(v, 1.0L) : 0;
  if (c.relu) v = v > 0 || v != v ? v : 0;
  u64 result = floatBits(c.to, v, c.round);
  if (c.ftz && c.to == Type::F32) result = bitsAs<u32>(flush(bitsAs<float>(u32(result))));
  return result;
}

// The result fills its register: sign-extended if it is signed.
u64 fill(Type type, u64 bits) {
  return isSigned(type) ? u64(signedBits(bits, bytesOf(type))) : lowBits(bits, bytesOf(type));
}

const Ins* convertAny(Warp& w, const Ins* i) {
  Conversion c;
  memcpy(&c, i->list, sizeof c);
  eachLane<false>(w, [&](int l) {
    u64 from = readLane(w, i->r[1], c.fromBytes, l);
    writeLane(w, i->r[0], c.toBytes, l, fill(c.to, convert(c, from)));
  });
  return i + 1;
}

// Two floats into a packed pair: the first is the upper half.
const Ins* convertPair(Warp& w, const Ins* i) {
  Conversion c;
  memcpy(&c, i->list, sizeof c);
  u32* d = lanesOf<u32>(w, i->r[0]);
  const u32 *hi = lanesOf<u32>(w, i->r[1]), *lo = lanesOf<u32>(w, i->r[2]);
  eachLane<false>(w, [&](int l) { d[l] = u32(convert(c, hi[l]) << 16 | convert(c, lo[l])); });
  return i + 1;
}

// ---------------------------------------------------------------------------
// Memory.  a0 is the Space, imm the offset that is added to each address.

const char* nameOf(Space space) {
  switch (space) {
    case Space::Generic: return "generic";
    case Space::Global: return "global";
    case Space::Shared: return "shared";
    case Space::Local: return "local";
    case Space::Param: return "param";
  }
  return "";
}

Range rangeOf(const Warp& w, Space space, u64 address, int lane) {
  const Worker& k = *w.worker;
  Range shared{u64(k.shared), u64(k.shared) + k.sharedBytes};
  Range local{u64(k.localOf(w, lane)), u64(k.localOf(w, lane)) + k.kernel->localBytes};
  Range param{u64(k.params), u64(k.params) + k.kernel->parameterBytes};
  auto within = [&](const Range& r) { return address >= r.lo && address < r.hi; };
  switch (space) {
    case Space::Shared: return within(shared) ? shared : Range{};
    case Space::Local: return within(local) ? local : Range{};
    case Space::Param:
      if (within(param)) return param;
      return within(local) ? local : Range{};
    case Space::Global: return g_memory.find(address);
    case Space::Generic: break;
  }
  if (within(shared)) return shared;
  if (within(local)) return local;
  if (within(param)) return param;
  return g_memory.find(address);
}

// Checks each lane's access; remembers the range if all lanes share it.
template <bool Full>
__attribute__((noinline)) void checkLanes(Warp& w, const Ins* i, const u64* a, u64 bytes,
                                          u64 alignment) {
  Space space = Space(i->a0);
  Range last;
  bool same = true, first = true;
  eachLane<Full>(w, [&](int l) {
    u64 address = a[l] + u64(i->imm);
    Range range = rangeOf(w, space, address, l);
    if (address < range.lo || range.hi - address < bytes)
      fail(CUDA_ERROR_ILLEGAL_ADDRESS, w, i, l,
           format("%s address 0x%llx is outside every allocation", nameOf(space),
                  (unsigned long long)address));
    if (address & (alignment - 1))
      fail(CUDA_ERROR_MISALIGNED_ADDRESS, w, i, l,
           format("%s address 0x%llx is not a multiple of %llu", nameOf(space),
                  (unsigned long long)address, (unsigned long long)alignment));
    same = same && (first || range.lo == last.lo);
    first = false;
    last = range;
  });
  bool local = last.lo >= u64(w.worker->local) &&
               last.lo < u64(w.worker->local) + w.worker->localRoom;
  if (same && !local) w.cache[i - w.code] = last;
}

template <bool Full, u64 Bytes>
inline void checkAccess(Warp& w, const Ins* i, const u64* a) {
  u64 lo = ~u64(0), hi = 0, all = 0, offset = u64(i->imm);
  if constexpr (Full) {
    for (int l = 0; l < kLanes; ++l) {
      u64 address = a[l] + offset;
      lo = address < lo ? address : lo;
      hi = address > hi ? address : hi;
      all |= address;
    }
  } else {
    eachLane<false>(w, [&](int l) {
      u64 address = a[l] + offset;
      lo = std::min(lo, address);
      hi = std::max(hi, address);
      all |= address;
    });
  }
  const Range& range = w.cache[i - w.code];
  if (__builtin_expect(lo < range.lo || hi > range.hi - Bytes || (all & (Bytes - 1)), 0))
    checkLanes<Full>(w, i, a, Bytes, Bytes);
}

// M is the type in memory, R of the registers, which are r[1]...; r[0] is the
// address.
template <class M, class R, int Count, bool Full>
const Ins* load(Warp& w, const Ins* i) {
  const u64* a = lanesOf<u64>(w, i->r[0]);
  checkAccess<Full, sizeof(M) * Count>(w, i, a);
  const u32* registers = i->r + 1;
  R* d[Count];
  R ignored[kLanes];
  for (int k = 0; k < Count; ++k)
    d[k] = registers[k] == kNone ? ignored : lanesOf<R>(w, registers[k]);
  u64 offset = u64(i->imm);
  auto one = [&](int l) {
    M values[Count];
    memcpy(values, reinterpret_cast<const void*>(a[l] + offset), sizeof values);
    for (int k = 0; k < Count; ++k) d[k][l] = R(values[k]);
  };
  eachLane<Full>(w, one);
  return i + 1;
}

template <class M, class R, int Count, bool Full>
const Ins* store(Warp& w, const Ins* i) {
  const u64* a = lanesOf<u64>(w, i->r[0]);
  checkAccess<Full, sizeof(M) * Count>(w, i, a);
  const R* s[Count];
  for (int k = 0; k < Count; ++k) s[k] = lanesOf<R>(w, i->r[1 + k]);
  u64 offset = u64(i->imm);
  auto one = [&](int l) {
    M values[Count];
    for (int k = 0; k < Count; ++k) values[k] = M(s[k][l]);
    memcpy(reinterpret_cast<void*>(a[l] + offset), values, sizeof values);
  };
  for (u32 m = w.mask; m; m &= m - 1) one(__builtin_ctz(m));  // in lane order
  return i + 1;
}

// A kernel parameter, the same for all lanes; imm is its offset.
template <class M, class R>
const Ins* loadParameter(Warp& w, const Ins* i) {
  M value;
  memcpy(&value, w.worker->params + i->imm, sizeof value);
  R* d = lanesOf<R>(w, i->r[1]);
  for (int l = 0; l < kLanes; ++l)
    if (w.mask & kBit.of[l]) d[l] = R(value);
  return i + 1;
}

// One lane's atomic update; returns the old value.
template <class T, class F>
T update(T* at, F next) {
  using U = std::conditional_t<sizeof(T) == 2, u16, BitsOf<T>>;
  U* bits = reinterpret_cast<U*>(at);
  U old = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    U wanted = bitsAs<U>(T(next(bitsAs<T>(old))));
    if (__atomic_compare_exchange_n(bits, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return bitsAs<T>(old);
  }
}

struct Exchange { template <class T> static T f(T, T b) { return b; } };
struct Increment { template <class T> static T f(T a, T b) { return a >= b ? T(0) : T(a + 1); } };
struct Decrement {
  template <class T> static T f(T a, T b) { return a == 0 || a > b ? b : T(a - 1); }
};

// r: d or none, address, b.
template <class Op, class T>
const Ins* atomic(Warp& w, const Ins* i) {
  const u64* a = lanesOf<u64>(w, i->r[1]);
  checkAccess<false, sizeof(T)>(w, i, a);
  const T* b = lanesOf<T>(w, i->r[2]);
  T* d = i->r[0] == kNone ? nullptr : lanesOf<T>(w, i->r[0]);
  eachLane<false>(w, [&](int l) {
    T value = b[l];
    T old = update(reinterpret_cast<T*>(a[l] + u64(i->imm)),
                   [=](T now) { return Op::f(now, value); });
    if (d) d[l] = old;
  });
  return i + 1;
}

template <class T>
const Ins* atomicSwap(Warp& w, const Ins* i) {
  const u64* a = lanesOf<u64>(w, i->r[1]);
  checkAccess<false, sizeof(T)>(w, i, a);
  const T *b = lanesOf<T>(w, i->r[2]), *c = lanesOf<T>(w, i->r[3]);
  T* d = i->r[0] == kNone ? nullptr : lanesOf<T>(w, i->r[0]);
  eachLane<false>(w, [&](int l) {
    T expected = b[l], wanted = c[l];
    T old = update(reinterpret_cast<T*>(a[l] + u64(i->imm)),
                   [=](T now) { return now == expected ? wanted : now; });
    if (d) d[l] = old;
  });
  return i + 1;
}

// cp.async: r: shared address, global address, bytes to read or none; a0 is
// the size, and the rest is zero-filled.
const Ins* copyAsync(Warp& w, const Ins* i) {
  const u64 *to = lanesOf<u64>(w, i->r[0]), *from = lanesOf<u64>(w, i->r[1]);
  u32 size = i->a0;
  eachLane<false>(w, [&](int l) {
    u32 read = i->r[2] == kNone ? size : std::min(size, lanesOf<u32>(w, i->r[2])[l]);
    u64 target = to[l] + u64(s64(s32(i->a1))), source = from[l] + u64(i->imm);
    Range shared = rangeOf(w, Space::Shared, target, l);
    if (target < shared.lo || shared.hi - target < size)
      fail(CUDA_ERROR_ILLEGAL_ADDRESS, w, i, l,
           format("shared address 0x%llx is outside the block's memory",
                  (unsigned long long)target));
    if (read) {
      Range global = rangeOf(w, Space::Global, source, l);
      if (source < global.lo || global.hi - source < read)
        fail(CUDA_ERROR_ILLEGAL_ADDRESS, w, i, l,
             format("global address 0x%llx is outside every allocation",
                    (unsigned long long)source));
    }
    if ((target | source) & (size - 1))
      fail(CUDA_ERROR_MISALIGNED_ADDRESS, w, i, l, "an address is not a multiple of the size");
    memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), read);
    memset(reinterpret_cast<void*>(target + read), 0, size - read);
  });
  return i + 1;
}

// isspacep: a0 is the Space.
const Ins* isSpace(Warp& w, const Ins* i) {
  const u64* a = lanesOf<u64>(w, i->r[1]);
  u32 bits = 0;
  eachLane<false>(w, [&](int l) {
    bool shared = rangeOf(w, Space::Shared, a[l], l).lo != Range().lo;
    bool local = rangeOf(w, Space::Local, a[l], l).lo != Range().lo;
    bool is = Space(i->a0) == Space::Shared ? shared
              : Space(i->a0) == Space::Local ? local : !shared && !local;
    if (is) bits |= kBit.of[l];
  });
  setPredicate(w, i->r[0], bits);
  return i + 1;
}

// ---------------------------------------------------------------------------
// Control flow and synchronisation.

inline const Ins* endOf(const Warp& w) {
  const Kernel& k = *w.worker->kernel;
  return k.code.data() + k.code.size();
}

// Sets the lanes aside and ends the run of this group.
const Ins* setAside(Warp& w, Group group) {
  w.groups.push_back(group);
  w.mask &= ~group.mask;
  return endOf(w);
}

const Ins* branch(Warp&, const Ins* i) { return i->target; }

// a1 negates the predicate r[0].
const Ins* branchIf(Warp& w, const Ins* i) {
  u32 taken = w.mask & (predicate(w, i->r[0]) ^ i->a1);
  if (taken == w.mask) return i->target;
  if (taken == 0) return i + 1;
  const Ins *lower = i + 1, *upper = i->target;
  u32 lowerMask = w.mask & ~taken, upperMask = taken;
  if (upper < lower) std::swap(lower, upper), std::swap(lowerMask, upperMask);
  w.groups.push_back({upper, upperMask, State::Ready, 0, 0});
  w.mask = lowerMask;
  w.stop = std::min(w.stop, upper);
  return lower;
}

// brx.idx: the lanes go where their index in r[0] says; list holds the
// instruction numbers, a0 their count.
const Ins* branchIndexed(Warp& w, const Ins* i) {
  const u32* index = lanesOf<u32>(w, i->r[0]);
  eachLane<false>(w, [&](int l) {
    if (index[l] >= i->a0)
      fail(CUDA_ERROR_ILLEGAL_INSTRUCTION, w, i, l, "branch index beyond its table");
    w.groups.push_back({w.code + i->list[index[l]], kBit.of[l], State::Ready, 0, 0});
  });
  w.mask = 0;
  return endOf(w);
}

// r[0] is a guard or none, which a1 negates.
const Ins* exitLanes(Warp& w, const Ins* i) {
  u32 leaving = w.mask;
  if (i->r[0] != kNone) leaving &= predicate(w, i->r[0]) ^ i->a1;
  w.live &= ~leaving;
  w.mask &= ~leaving;
  return w.mask ? i + 1 : endOf(w);
}

const Ins* trapLanes(Warp& w, const Ins* i) {
  fail(CUDA_ERROR_LAUNCH_FAILED, w, i, __builtin_ctz(w.mask), "trap");
}

const Ins* nothing(Warp&, const Ins* i) { return i + 1; }

// The lanes that the first active lane names in r; active lanes that name
// others, as tiles of a warp do, are set aside to run this by themselves.
u32 membersOf(Warp& w, const Ins* i, u32 r) {
  const u32* members = lanesOf<u32>(w, r);
  u32 first = members[__builtin_ctz(w.mask)], others = 0;
  eachLane<false>(w, [&](int l) { others |= members[l] != first ? kBit.of[l] : 0; });
  if (others) {
    setAside(w, {i, others, State::Ready, 0, 0});
    w.stop = i;
  }
  return first;
}

// True once the lanes that `members` names stand here together; else the lanes
// are set aside and `next` is where to go on.
bool gathered(Warp& w, const Ins* i, u32 members, const Ins*& next) {
  if (!(members & w.live & ~w.mask)) return true;
  next = endOf(w);
  for (Group& g : w.groups) {
    if (g.state != State::Parked || g.pc != i || g.expected != members) continue;
    g.mask |= w.mask;
    w.mask = 0;
    return false;
  }
  setAside(w, {i, w.mask, State::Parked, 0, members});
  return false;
}

// Barriers: a0 is the number of the barrier, a1 the count of threads or 0.
const Ins* barrier(Warp& w, const Ins* i) {
  return setAside(w, {i + 1, w.mask, State::Barrier, i->a0, i->a1});
}

const Ins* warpBarrier(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[0]);
  return gathered(w, i, members, next) ? i + 1 : next;
}

enum class Shuffle : u32 { Up, Down, Butterfly, Index };

// The lane that lane l reads; inside is false if that is outside its segment,
// and then it reads itself.
int shuffleSource(Shuffle how, int l, u32 b, u32 c, bool& inside) {
  int distance = int(b & 31), clamp = int(c & 31), segment = int(c >> 8 & 31);
  int lowest = l & segment, highest = lowest | (clamp & ~segment), lane = l;
  switch (how) {
    case Shuffle::Up: lane = l - distance, inside = lane >= highest; break;
    case Shuffle::Down: lane = l + distance, inside = lane <= highest; break;
    case Shuffle::Butterfly: lane = l ^ distance, inside = lane <= highest; break;
    case Shuffle::Index: lane = lowest | (distance & ~segment), inside = lane <= highest; break;
  }
  return inside ? lane : l;
}

// A shuffle whose lanes are known: list holds the lane that each reads.
const Ins* shuffleFixed(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[4]);
  if (!gathered(w, i, members, next)) return next;
  u32 from[kLanes];
  memcpy(from, lanesOf<u32>(w, i->r[1]), sizeof from);
  u32* d = lanesOf<u32>(w, i->r[0]);
  const u32* lanes = i->list;
  if (w.mask == kAllLanes)
    for (int l = 0; l < kLanes; ++l) d[l] = from[lanes[l]];
  else
    eachLane<false>(w, [&](int l) { d[l] = from[lanes[l]]; });
  return i + 1;
}

// r: d, a, b, c, members, p or none; a0 is the Shuffle.
const Ins* shuffle(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[4]);
  if (!gathered(w, i, members, next)) return next;
  u32 from[kLanes], result[kLanes];
  memcpy(from, lanesOf<u32>(w, i->r[1]), sizeof from);
  const u32 *b = lanesOf<u32>(w, i->r[2]), *c = lanesOf<u32>(w, i->r[3]);
  u32 valid = 0;
  for (int l = 0; l < kLanes; ++l) {
    bool inside = false;
    result[l] = from[shuffleSource(Shuffle(i->a0), l, b[l], c[l], inside)];
    if (inside) valid |= kBit.of[l];
  }
  u32* d = lanesOf<u32>(w, i->r[0]);
  for (int l = 0; l < kLanes; ++l)
    if (w.mask & kBit.of[l]) d[l] = result[l];
  if (i->r[5] != kNone) setPredicate(w, i->r[5], valid);
  return i + 1;
}

enum class Vote : u32 { All, Any, Uniform, Ballot };

// r: d (a predicate, or a register for ballot), p, members; a0 is the Vote,
// a1 negates p.
const Ins* vote(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[2]);
  if (!gathered(w, i, members, next)) return next;
  u32 voters = w.mask & members;
  u32 ayes = voters & (predicate(w, i->r[1]) ^ i->a1);
  bool holds = false;
  switch (Vote(i->a0)) {
    case Vote::All: holds = ayes == voters; break;
    case Vote::Any: holds = ayes != 0; break;
    case Vote::Uniform: holds = ayes == 0 || ayes == voters; break;
    case Vote::Ballot: {
      u32* d = lanesOf<u32>(w, i->r[0]);
      eachLane<false>(w, [=](int l) { d[l] = ayes; });
      return i + 1;
    }
  }
  setPredicate(w, i->r[0], holds ? kAllLanes : 0);
  return i + 1;
}

const Ins* activeMask(Warp& w, const Ins* i) {
  u32 *d = lanesOf<u32>(w, i->r[0]), mask = w.mask;
  eachLane<false>(w, [=](int l) { d[l] = mask; });
  return i + 1;
}

// match.any and, if a0 is set, match.all; r: d, a, members, p or none.
template <class T>
const Ins* matchLanes(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[2]);
  if (!gathered(w, i, members, next)) return next;
  const T* a = lanesOf<T>(w, i->r[1]);
  u32 found[kLanes], all = 0;
  eachLane<false>(w, [&](int l) {
    found[l] = 0;
    eachLane<false>(w, [&](int m) { found[l] |= a[l] == a[m] ? kBit.of[m] : 0; });
    if (found[l] == w.mask) all = kAllLanes;
  });
  u32* d = lanesOf<u32>(w, i->r[0]);
  eachLane<false>(w, [&](int l) { d[l] = i->a0 ? all & w.mask : found[l]; });
  if (i->r[3] != kNone) setPredicate(w, i->r[3], all);
  return i + 1;
}

template <class Op, class T>
const Ins* reduceLanes(Warp& w, const Ins* i) {
  const Ins* next;
  u32 members = membersOf(w, i, i->r[2]);
  if (!gathered(w, i, members, next)) return next;
  const T* a = lanesOf<T>(w, i->r[1]);
  T total = a[__builtin_ctz(w.mask)];
  for (u32 m = w.mask & (w.mask - 1); m; m &= m - 1) total = Op::f(total, a[__builtin_ctz(m)]);
  T* d = lanesOf<T>(w, i->r[0]);
  eachLane<false>(w, [=](int l) { d[l] = total; });
  return i + 1;
}

// ---------------------------------------------------------------------------
// Matrix instructions.  All lanes take part.

void needAllLanes(Warp& w, const Ins* i) {
  if (w.mask != kAllLanes)
    fail(CUDA_ERROR_LAUNCH_FAILED, w, i, __builtin_ctz(w.mask),
         "a matrix instruction needs all lanes of the warp");
}

// r: address; list: the destinations; a0 their count, a1 transposes.
const Ins* loadMatrix(Warp& w, const Ins* i) {
  const Ins* next;
  if (!gathered(w, i, kAllLanes, next)) return next;
  needAllLanes(w, i);
  const u64* a = lanesOf<u64>(w, i->r[0]);
  for (u32 matrix = 0; matrix < i->a0; ++matrix) {
    u16 rows[8][8];
    for (int row = 0; row < 8; ++row) {
      int lane = int(matrix) * 8 + row;
      u64 address = a[lane] + u64(i->imm);
      Range shared = rangeOf(w, Space::Shared, address, lane);
      if (address < shared.lo || shared.hi - address < 16)
        fail(CUDA_ERROR_ILLEGAL_ADDRESS, w, i, lane,
             format("row address 0x%llx is outside the block's memory",
                    (unsigned long long)address));
      if (address % 16)
        fail(CUDA_ERROR_MISALIGNED_ADDRESS, w, i, lane,
             format("row address 0x%llx is not a multiple of 16", (unsigned long long)address));
      memcpy(rows[row], reinterpret_cast<const void*>(address), 16);
    }
    u32* d = lanesOf<u32>(w, i->r[1 + matrix]);
    for (int l = 0; l < kLanes; ++l) {
      int row = l / 4, column = l % 4 * 2;
      d[l] = i->a1 ? rows[column][row] | u32(rows[column + 1][row]) << 16
                   : rows[row][column] | u32(rows[row][column + 1]) << 16;
    }
  }
  return i + 1;
}

// mma.sync m16n8kK: list holds the registers of D (4 or 2), A, B and C.
struct MatrixShape {
  int k;
  Type a, b, c;  // element types; C's is D's too
};

constexpr int kMatrixKinds = 16;
MatrixShape g_shapes[kMatrixKinds] = {
    {16, Type::F16, Type::F16, Type::F32},   {8, Type::F16, Type::F16, Type::F32},
    {16, Type::F16, Type::F16, Type::F16},   {8, Type::F16, Type::F16, Type::F16},
    {16, Type::BF16, Type::BF16, Type::F32}, {8, Type::BF16, Type::BF16, Type::F32},
    {8, Type::TF32, Type::TF32, Type::F32},  {4, Type::TF32, Type::TF32, Type::F32},
    {32, Type::S8, Type::S8, Type::S32},     {16, Type::S8, Type::S8, Type::S32},
    {32, Type::U8, Type::U8, Type::S32},     {16, Type::U8, Type::U8, Type::S32},
    {32, Type::S8, Type::U8, Type::S32},     {16, Type::S8, Type::U8, Type::S32},
    {32, Type::U8, Type::S8, Type::S32},     {16, Type::U8, Type::S8, Type::S32},
};

double element(Type type, u32 word, int index) {
  switch (type) {
    case Type::F16: return halfToFloat(u16(word >> (16 * index)));
    case Type::BF16: return brainToFloat(u16(word >> (16 * index)));
    case Type::S8: return s8(word >> (8 * index));
    case Type::U8: return u8(word >> (8 * index));
    default: return bitsAs<float>(word & 0xffffe000u);  // TF32 ignores the low bits
  }
}

const Ins* multiplyMatrices(Warp& w, const Ins* i) {
  const Ins* next;
  if (!gathered(w, i, kAllLanes, next)) return next;
  needAllLanes(w, i);
  const MatrixShape& s = g_shapes[i->a0];
  const int size = std::max(1, bytesOf(s.a)), packed = 4 / size;
  const int aRegisters = 16 * s.k / (kLanes * packed), bRegisters = 8 * s.k / (kLanes * packed);
  const bool halfSum = s.c == Type::F16;
  const int sums = halfSum ? 2 : 4;
  const u32 *d = i->list, *a = d + sums, *b = a + aRegisters, *c = b + bRegisters;
  double left[16][32], right[32][8];
  for (int l = 0; l < kLanes; ++l) {
    int group = l / 4, place = l % 4;
    for (int r = 0; r < aRegisters; ++r)  // registers go down the rows, then right
      for (int e = 0; e < packed; ++e)
        left[group + (r & 1) * 8][place * packed + e + (r / 2) * 4 * packed] =
            element(s.a, lanesOf<u32>(w, a[r])[l], e);
    for (int r = 0; r < bRegisters; ++r)
      for (int e = 0; e < packed; ++e)
        right[place * packed + e + r * 4 * packed][group] =
            element(s.b, lanesOf<u32>(w, b[r])[l], e);
  }
  for (int l = 0; l < kLanes; ++l) {
    int group = l / 4, place = l % 4;
    for (int e = 0; e < 4; ++e) {
      int row = group + (e >> 1) * 8, column = place * 2 + (e & 1);
      double sum = 0;
      for (int k = 0; k < s.k; ++k) sum += left[row][k] * right[k][column];
      int reg = halfSum ? e / 2 : e, shift = halfSum ? e % 2 * 16 : 0;
      u32 before = lanesOf<u32>(w, c[reg])[l];
      u32& out = lanesOf<u32>(w, d[reg])[l];
      if (s.c == Type::F32) {
        out = bitsAs<u32>(float(sum + double(bitsAs<float>(before))));
      } else if (s.c == Type::S32) {
        out = u32(s32(sum)) + before;
      } else {
        u16 half = floatToHalf(floatToOdd(sum + double(halfToFloat(u16(before >> shift)))));
        out = shift ? (out & 0xffffu) | u32(half) << 16 : (out & 0xffff0000u) | half;
      }
    }
  }
  return i + 1;
}

}  // namespace
