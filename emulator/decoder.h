#pragma once

#include "reader.h"

namespace {

// ---------------------------------------------------------------------------
// Decoding: statements of PTX become instructions with handlers.

struct Symbol {
  enum Kind { Address, Shared, Dynamic, Local, Parameter } kind;
  u64 value;  // address, or offset in its memory
  u64 bytes;
};

using Symbols = std::map<std::string_view, Symbol>;

class Decoder {
 public:
  Decoder(const Source& source, const Symbols& globals, Kernel& kernel)
      : source_(source), globals_(globals), k_(kernel) {}

  void decode(const Function& f) {
    frames_.emplace_back();
    u32 offset = 0;
    for (const Variable& p : f.parameters) {
      offset = (offset + p.align - 1) / p.align * p.align;
      k_.parameters.push_back({p.name, offset, u32(p.bytes)});
      frames_.back().symbols[p.name] = {Symbol::Parameter, offset, p.bytes};
      offset += u32(p.bytes);
    }
    k_.parameterBytes = offset;
    decodeBody(f);
    emit(exitLanes, {});
    finish();
  }

 private:
  struct Register {
    u32 id;
    u8 bytes;  // 0 for a predicate
  };
  struct Declared {
    u8 bytes;
    u64 count;  // 0 for a single register
  };
  struct Scope {
    std::unordered_map<std::string_view, Declared> declared;
    std::unordered_map<std::string_view, Register> registers;
  };
  struct Frame {  // one function, in line
    std::deque<Scope> scopes;
    Symbols symbols;
    std::unordered_map<std::string_view, u32> labels;
    std::unordered_map<std::string_view, const Statement*> targets;
    u32 endLabel = kNone;  // where ret goes, none in the kernel itself
  };
  struct Life {  // of a register, in statements
    u8 bytes;
    bool fixed = false, definedFirst = false;
    u32 first = kNone, last = 0, firstBlock = 0, lastBlock = 0;
  };
  struct Fixup {
    u32 ins, label;
  };

  // --- errors -------------------------------------------------------------

  [[noreturn]] void refuse(const std::string& why) const {
    const std::string_view text = s_ ? s_->text : std::string_view();
    throw Fault{CUDA_ERROR_INVALID_PTX,
                format("kernel %s, line %u of the PTX: \"%.*s\": %s", k_.name.c_str(),
                       s_ ? s_->line : 0, int(std::min<size_t>(text.size(), 200)), text.data(),
                       why.c_str())};
  }

  // --- registers ----------------------------------------------------------

  u32 newRegister(u8 bytes, bool fixed = false) {
    lives_.push_back({bytes, fixed});
    return u32(lives_.size() - 1);
  }

  u32 touch(u32 id, bool defines) {
    Life& life = lives_[id];
    if (life.first == kNone) {
      life.first = statement_, life.firstBlock = block_;
      life.definedFirst = defines;
    }
    life.last = statement_, life.lastBlock = block_;
    return id;
  }

  Register* find(std::string_view name) {
    Frame& frame = frames_.back();
    for (auto scope = frame.scopes.rbegin(); scope != frame.scopes.rend(); ++scope) {
      auto known = scope->registers.find(name);
      if (known != scope->registers.end()) return &known->second;
      const Declared* d = declaration(*scope, name);
      if (d) return &(scope->registers[name] = {newRegister(d->bytes), d->bytes});
    }
    return nullptr;
  }

  const Declared* declaration(const Scope& scope, std::string_view name) const {
    auto exact = scope.declared.find(name);
    if (exact != scope.declared.end() && exact->second.count == 0) return &exact->second;
    size_t digits = name.size();
    while (digits > 0 && isdigit(u8(name[digits - 1]))) --digits;
    if (digits == name.size()) return nullptr;
    for (size_t cut = digits; cut < name.size(); ++cut) {
      auto prefix = scope.declared.find(name.substr(0, cut));
      if (prefix == scope.declared.end()) continue;
      if (strtoull(std::string(name.substr(cut)).c_str(), nullptr, 10) < prefix->second.count)
        return &prefix->second;
    }
    return nullptr;
  }

  Register reg(const Operand& o, bool defines) {
    Register* r = o.kind == Operand::Name ? find(o.name) : nullptr;
    if (!r) refuse("expected a register, not \"" + std::string(o.name) + "\"");
    touch(r->id, defines);
    return *r;
  }

  u32 sized(const Operand& o, int bytes, bool defines) {
    Register r = reg(o, defines);
    if (r.bytes != std::max(bytes, 2)) refuse("register of another width than the type");
    return r.id;
  }

  u32 dst(const Operand& o, int bytes) { return sized(o, bytes, true); }
  u32 dst(size_t n, int bytes) { return dst(operand(n), bytes); }

  u32 dstPredicate(std::string_view name) {
    if (name == "_") return newRegister(0, true);
    Operand o;
    o.name = name;
    Register r = reg(o, true);
    if (r.bytes) refuse("expected a predicate");
    return r.id;
  }

  u32 predicateOf(const Operand& o) {
    if (o.kind == Operand::Number) return constant(0, o.value != 0);
    Register r = reg(o, false);
    if (r.bytes) refuse("expected a predicate");
    return r.id;
  }

  u32 preset(const Preset& wanted) {
    u64 key = wanted.constant ? 0 : 1 + u64(wanted.special);
    u32& id = presets_[{key << 8 | wanted.bytes, wanted.value}];
    if (!id) {
      id = newRegister(wanted.bytes, true);
      k_.presets.push_back(wanted);
      k_.presets.back().reg = id;
    }
    return id;
  }

  u32 constant(int bytes, u64 value) {
    return preset({0, u8(bytes), true, Special::TidX, bytes ? lowBits(value, bytes) : value});
  }

  u32 number(const Operand& o, Type type, int bytes) {
    u64 value = o.value;
    if (o.floating == 'd' && type == Type::F32) value = bitsAs<u32>(float(bitsAs<double>(value)));
    if (o.floating == 'f' && type == Type::F64)
      value = bitsAs<u64>(double(bitsAs<float>(u32(value))));
    return constant(std::max(bytes, 2), value);
  }

  // A source operand of the type: register, number, special register.
  u32 src(const Operand& o, Type type) {
    int bytes = bytesOf(type);
    if (o.kind == Operand::Number) return number(o, type, bytes);
    if (o.kind != Operand::Name) refuse("unexpected kind of operand");
    Special special;
    if (!find(o.name) && specialNamed(o.name, special))
      return preset({0, u8(bytes), false, special, 0});
    if (!find(o.name) && o.name == "WARP_SZ") return constant(bytes, kLanes);
    return sized(o, bytes, false);
  }
  u32 src(size_t n, Type type) { return src(operand(n), type); }

  bool specialNamed(std::string_view name, Special& out) const {
    static const std::map<std::string_view, Special> kSpecials = {
        {"%tid.x", Special::TidX}, {"%tid.y", Special::TidY}, {"%tid.z", Special::TidZ},
        {"%ntid.x", Special::NtidX}, {"%ntid.y", Special::NtidY}, {"%ntid.z", Special::NtidZ},
        {"%ctaid.x", Special::CtaidX}, {"%ctaid.y", Special::CtaidY},
        {"%ctaid.z", Special::CtaidZ}, {"%nctaid.x", Special::NctaidX},
        {"%nctaid.y", Special::NctaidY}, {"%nctaid.z", Special::NctaidZ},
        {"%laneid", Special::LaneId}, {"%warpid", Special::WarpId},
        {"%nwarpid", Special::NWarpId}, {"%lanemask_eq", Special::LaneEq},
        {"%lanemask_lt", Special::LaneLt}, {"%lanemask_le", Special::LaneLe},
        {"%lanemask_gt", Special::LaneGt}, {"%lanemask_ge", Special::LaneGe},
        {"%smid", Special::SmId}, {"%nsmid", Special::NSmId}, {"%gridid", Special::GridId},
        {"%dynamic_smem_size", Special::DynamicShared},
        {"%total_smem_size", Special::TotalShared},
    };
    auto found = kSpecials.find(name);
    if (found == kSpecials.end()) return false;
    out = found->second;
    return true;
  }

  const Symbol* symbol(std::string_view name) const {
    auto here = frames_.back().symbols.find(name);
    if (here != frames_.back().symbols.end()) return &here->second;
    auto global = globals_.find(name);
    return global == globals_.end() ? nullptr : &global->second;
  }

  u32 addressOf(const Symbol& s, u64 offset = 0) {
    switch (s.kind) {
      case Symbol::Address: return constant(8, s.value + offset);
      case Symbol::Shared: return preset({0, 8, false, Special::SharedAddress, s.value + offset});
      case Symbol::Dynamic:
        return preset({0, 8, false, Special::DynamicAddress, s.value + offset});
      case Symbol::Local: return preset({0, 8, false, Special::LocalAddress, s.value + offset});
      case Symbol::Parameter:
        return preset({0, 8, false, Special::ParamAddress, s.value + offset});
    }
    return kNone;
  }

  // The register of a memory operand's address, as 64 bits.
  u32 address(const Operand& o) {
    if (o.kind != Operand::Address) refuse("expected an address");
    if (o.name.empty()) return constant(8, 0);
    if (const Symbol* s = symbol(o.name)) return addressOf(*s);
    Operand base;
    base.name = o.name;
    Register r = reg(base, false);
    if (r.bytes == 8) return r.id;
    if (r.bytes != 4) refuse("address register of a strange width");
    u32 wide = touch(newRegister(8), true);
    emitUnary<IntToInt<u64, u32>, u64, u32>(wide, r.id);
    return wide;
  }

  // --- emitting -----------------------------------------------------------

  Ins& emit(Handler full, Handler part, std::initializer_list<u32> registers) {
    Ins i;
    i.full = full, i.part = part;
    std::copy(registers.begin(), registers.end(), i.r);
    k_.code.push_back(i);
    k_.text.push_back(s_ ? s_->text : std::string_view("ret"));
    return k_.code.back();
  }
  Ins& emit(Handler both, std::initializer_list<u32> registers) {
    return emit(both, both, registers);
  }

  template <class Op, class D, class A>
  void emitUnary(u32 d, u32 a) {
    emit(unary<Op, D, A, true>, unary<Op, D, A, false>, {d, a});
  }
  template <class Op, class D, class A, class B>
  void emitBinary(u32 d, u32 a, u32 b) {
    emit(binary<Op, D, A, B, true>, binary<Op, D, A, B, false>, {d, a, b});
  }
  template <class Op, class D, class A, class B, class C>
  void emitTernary(u32 d, u32 a, u32 b, u32 c) {
    emit(ternary<Op, D, A, B, C, true>, ternary<Op, D, A, B, C, false>, {d, a, b, c});
  }

  // All operands of one C++ type T, in registers for the PTX type.
  template <class Op, class T, int N>
  void emitSame(Type type) {
    need(N + 1);
    u32 a = src(1, type), b = N > 1 ? src(2, type) : kNone, c = N > 2 ? src(3, type) : kNone;
    u32 d = dst(size_t(0), bytesOf(type));
    if constexpr (N == 1) emitUnary<Op, T, T>(d, a);
    if constexpr (N == 2) emitBinary<Op, T, T, T>(d, a, b);
    if constexpr (N == 3) emitTernary<Op, T, T, T, T>(d, a, b, c);
  }

  template <class Op, int N>
  void emitInt(Type type) {
    switch (type) {
      case Type::U16: return emitSame<Op, u16, N>(type);
      case Type::S16: return emitSame<Op, s16, N>(type);
      case Type::U32: return emitSame<Op, u32, N>(type);
      case Type::S32: return emitSame<Op, s32, N>(type);
      case Type::U64: return emitSame<Op, u64, N>(type);
      case Type::S64: return emitSame<Op, s64, N>(type);
      default: refuse("type not supported here");
    }
  }

  // For operations that do not mind the sign.
  template <class Op, int N>
  void emitBits(Type type) {
    switch (bytesOf(type)) {
      case 2: return emitSame<Op, u16, N>(type);
      case 4: return emitSame<Op, u32, N>(type);
      case 8: return emitSame<Op, u64, N>(type);
      default: refuse("type not supported here");
    }
  }

  struct FloatStyle {
    Round round = Round::Nearest;
    bool ftz = false, sat = false;
  };

  template <class Op, int N>
  void emitFloat(Type type, FloatStyle f) {
    if (f.round != Round::Nearest) return emitDirected<Op, N>(type, f);
    if (type != Type::F32 && (f.ftz || f.sat)) refuse("modifier not supported for this type");
    switch (type) {
      case Type::F32:
        if (f.ftz && f.sat) return emitSame<Sat<Ftz<Op>>, float, N>(type);
        if (f.ftz) return emitSame<Ftz<Op>, float, N>(type);
        if (f.sat) return emitSame<Sat<Op>, float, N>(type);
        return emitSame<Op, float, N>(type);
      case Type::F64: return emitSame<Op, double, N>(type);
      case Type::F16: return emitSame<Narrow<Op, Half>, u16, N>(type);
      case Type::BF16: return emitSame<Narrow<Op, Brain>, u16, N>(type);
      case Type::F16x2: return emitSame<Twice<Narrow<Op, Half>>, u32, N>(type);
      case Type::BF16x2: return emitSame<Twice<Narrow<Op, Brain>>, u32, N>(type);
      default: refuse("type not supported here");
    }
  }

  template <class Op, int N>
  void emitDirected(Type type, FloatStyle f) {
    if (f.ftz || f.sat) refuse("modifier not supported with this rounding");
    need(N + 1);
    u32 a = src(1, type), b = N > 1 ? src(2, type) : kNone, c = N > 2 ? src(3, type) : kNone;
    u32 d = dst(size_t(0), bytesOf(type));
    Handler h = type == Type::F32   ? Handler(directed<Op, float, N>)
                : type == Type::F64 ? Handler(directed<Op, double, N>) : nullptr;
    if (!h) refuse("rounding not supported for this type");
    emit(h, {d, a, b, c}).a0 = u32(f.round);
  }

  // --- statements ---------------------------------------------------------

  const Operand& operand(size_t n) const {
    if (n >= s_->operands.size()) refuse("too few operands");
    return s_->operands[n];
  }
  void need(size_t count) const {
    if (s_->operands.size() != count) refuse("unexpected number of operands");
  }

  bool take(std::string_view modifier) {
    for (std::string_view& m : modifiers_)
      if (m == modifier) {
        m = {};
        return true;
      }
    return false;
  }
  void ignore(std::initializer_list<std::string_view> list) {
    for (std::string_view m : list) take(m);
  }
  Type takeType() {
    for (std::string_view& m : modifiers_) {
      Type type = typeNamed(m);
      if (type == Type::None) continue;
      m = {};
      return type;
    }
    refuse("a type is missing or not supported");
  }
  Round takeRound() {
    if (take("rz")) return Round::Zero;
    if (take("rm")) return Round::Down;
    if (take("rp")) return Round::Up;
    take("rn");
    return Round::Nearest;
  }
  FloatStyle takeStyle() {
    FloatStyle f;
    f.round = takeRound();
    f.ftz = take("ftz");
    f.sat = take("sat");
    return f;
  }

  u32 label(std::string_view name) {
    auto at = frames_.back().labels.emplace(name, u32(labels_.size()));
    if (at.second) labels_.push_back(kNone);
    return at.first->second;
  }
  u32 newLabel() {
    labels_.push_back(kNone);
    return u32(labels_.size() - 1);
  }
  void place(u32 label) {
    labels_[label] = u32(k_.code.size());
    ++block_;
  }
  void branchTo(u32 label, u32 predicate = kNone, bool negated = false) {
    Ins& i = predicate == kNone ? emit(branch, {}) : emit(branchIf, {predicate});
    i.a1 = negated ? kAllLanes : 0;
    fixups_.push_back({u32(k_.code.size() - 1), label});
    ++block_;
  }

  u32 guardRegister() {
    if (s_->guard.empty()) return kNone;
    Operand o;
    o.name = s_->guard;
    return predicateOf(o);
  }

  void decodeBody(const Function& f) {
    frames_.back().scopes.emplace_back();
    for (const Statement& s : f.body)
      if (s.kind == Statement::Targets) frames_.back().targets[s.op] = &s;
    for (const Statement& s : f.body) {
      s_ = &s;
      ++statement_;
      switch (s.kind) {
        case Statement::Open: frames_.back().scopes.emplace_back(); break;
        case Statement::Close: frames_.back().scopes.pop_back(); break;
        case Statement::Label: place(label(s.op)); break;
        case Statement::Registers: declareRegisters(s); break;
        case Statement::Declare: declareVariable(s.variable); break;
        case Statement::Targets: break;
        case Statement::Instruction: instruction(); break;
      }
    }
    s_ = nullptr;
  }

  void declareRegisters(const Statement& s) {
    u8 bytes = u8(s.type == Type::Pred ? 0 : std::max(bytesOf(s.type), 2));
    for (const Operand& o : s.operands)
      frames_.back().scopes.back().declared[o.name] = {bytes, o.value};
  }

  void declareVariable(const Variable& v) {
    bool shared = v.place == Variable::Shared;
    u32& end = shared ? k_.staticShared : k_.localBytes;
    end = (end + v.align - 1) / v.align * v.align;
    frames_.back().symbols[v.name] = {shared ? Symbol::Shared : Symbol::Local, end, v.bytes};
    end += u32(v.bytes);
  }

  void splitOp() {
    modifiers_.clear();
    std::string_view rest = s_->op;
    for (size_t dot; (dot = rest.find('.')) != std::string_view::npos;) {
      modifiers_.push_back(rest.substr(0, dot));
      rest = rest.substr(dot + 1);
    }
    modifiers_.push_back(rest);
    name_ = modifiers_.front();
    modifiers_.front() = {};
  }

  void instruction() {
    splitOp();
    auto method = methods().find(name_);
    if (method == methods().end()) refuse("instruction not supported");
    bool own = name_ == "bra" || name_ == "ret" || name_ == "exit";
    u32 skip = kNone;
    if (!s_->guard.empty() && !own) {
      skip = newLabel();
      branchTo(skip, guardRegister(), !s_->guardNegated);
    }
    const Statement* here = s_;
    (this->*method->second)();
    s_ = here;
    for (std::string_view m : modifiers_)
      if (!m.empty()) refuse("modifier \"" + std::string(m) + "\" not supported");
    if (skip != kNone) place(skip);
  }

  using Method = void (Decoder::*)();

  static const std::unordered_map<std::string_view, Method>& methods() {
    using D = Decoder;
    static const std::unordered_map<std::string_view, Method> kMethods = {
        {"add", &D::add}, {"sub", &D::sub}, {"addc", &D::add}, {"subc", &D::sub},
        {"mul", &D::mul}, {"mad", &D::mad}, {"fma", &D::fma}, {"div", &D::div},
        {"rem", &D::rem}, {"abs", &D::abs}, {"neg", &D::neg}, {"min", &D::minMax<true>},
        {"max", &D::minMax<false>}, {"sad", &D::sad}, {"and", &D::logic<And, Join::And>},
        {"or", &D::logic<Or, Join::Or>}, {"xor", &D::logic<Xor, Join::Xor>}, {"not", &D::invert},
        {"cnot", &D::cnot}, {"shl", &D::shl}, {"shr", &D::shr}, {"shf", &D::shf},
        {"lop3", &D::lop3Table}, {"popc", &D::popc}, {"clz", &D::clz}, {"bfind", &D::bfind},
        {"brev", &D::brev}, {"bfe", &D::bfe}, {"bfi", &D::bfi}, {"prmt", &D::prmt},
        {"dp4a", &D::dp4a}, {"selp", &D::selp}, {"slct", &D::slct}, {"setp", &D::setp},
        {"set", &D::set}, {"mov", &D::mov}, {"cvt", &D::cvt}, {"cvta", &D::cvta},
        {"ld", &D::ld}, {"ldu", &D::ld}, {"st", &D::st}, {"prefetch", &D::hint},
        {"prefetchu", &D::hint}, {"isspacep", &D::isspacep}, {"atom", &D::atom<true>},
        {"red", &D::atom<false>}, {"bar", &D::bar}, {"barrier", &D::bar}, {"membar", &D::hint},
        {"fence", &D::hint}, {"nanosleep", &D::hint}, {"shfl", &D::shfl}, {"vote", &D::voteSync},
        {"match", &D::match}, {"activemask", &D::activemask}, {"redux", &D::redux},
        {"bra", &D::bra}, {"brx", &D::brx}, {"call", &D::call}, {"ret", &D::ret},
        {"exit", &D::exitKernel}, {"trap", &D::trap}, {"rcp", &D::floatUnary<Reciprocal>},
        {"sqrt", &D::floatUnary<Sqrt>}, {"rsqrt", &D::floatUnary<ReciprocalSqrt>},
        {"sin", &D::floatUnary<Sin>}, {"cos", &D::floatUnary<Cos>},
        {"lg2", &D::floatUnary<Log2>}, {"ex2", &D::floatUnary<Exp2>},
        {"tanh", &D::floatUnary<Tanh>}, {"copysign", &D::copysign}, {"testp", &D::testp},
        {"mma", &D::mma}, {"ldmatrix", &D::ldmatrix}, {"cp", &D::cp},
    };
    return kMethods;
  }

  // --- arithmetic ---------------------------------------------------------

  bool carries(bool subtracts) {
    bool in = name_.back() == 'c', out = take("cc");
    if (!in && !out) return false;
    Type type = takeType();
    need(3);
    u32 a = src(1, type), b = src(2, type);
    Handler h = bytesOf(type) == 8 ? Handler(carrySum<u64>) : Handler(carrySum<u32>);
    if (isFloat(type) || bytesOf(type) < 4) refuse("type not supported here");
    emit(h, {dst(size_t(0), bytesOf(type)), a, b}).a0 =
        u32(subtracts) | u32(in) << 1 | u32(out) << 2;
    return true;
  }

  void add() {
    if (carries(false)) return;
    FloatStyle style = takeStyle();
    Type type = takeType();
    if (isFloat(type)) return emitFloat<Add, 2>(type, style);
    if (type == Type::S32 && style.sat) return emitSame<AddSat, s32, 2>(type);
    if (type == Type::U16x2 || type == Type::S16x2) return emitSame<Twice<Add16>, u32, 2>(type);
    if (style.sat) refuse("saturation not supported for this type");
    emitBits<Add, 2>(type);
  }
  struct Add16 { static u16 f(u16 a, u16 b) { return u16(a + b); } };

  void sub() {
    if (carries(true)) return;
    FloatStyle style = takeStyle();
    Type type = takeType();
    if (isFloat(type)) return emitFloat<Sub, 2>(type, style);
    if (type == Type::S32 && style.sat) return emitSame<SubSat, s32, 2>(type);
    if (style.sat) refuse("saturation not supported for this type");
    emitBits<Sub, 2>(type);
  }

  void mul() {
    if (take("lo")) return emitBits<MulLow, 2>(takeType());
    if (take("hi")) return emitInt<MulHigh, 2>(takeType());
    if (take("wide")) return wide(false);
    FloatStyle style = takeStyle();
    Type type = takeType();
    if (!isFloat(type)) refuse("lo, hi or wide is missing");
    emitFloat<Mul, 2>(type, style);
  }

  void mad() {
    if (take("lo")) return emitBits<MadLow, 3>(takeType());
    if (take("hi")) return emitInt<MadHigh, 3>(takeType());
    if (take("wide")) return wide(true);
    FloatStyle style = takeStyle();
    Type type = takeType();
    if (!isFloat(type)) refuse("lo, hi or wide is missing");
    emitFloat<Fma, 3>(type, style);
  }

  template <class T, class W>
  void emitWide(Type type, Type wideType, bool adds) {
    u32 a = src(1, type), b = src(2, type), c = adds ? src(3, wideType) : kNone;
    u32 d = dst(size_t(0), int(sizeof(W)));
    if (adds) emit(madWide<T, W, true>, madWide<T, W, false>, {d, a, b, c});
    else emit(mulWide<T, W, true>, mulWide<T, W, false>, {d, a, b});
  }

  void wide(bool adds) {
    need(adds ? 4 : 3);
    Type type = takeType();
    switch (type) {
      case Type::U16: return emitWide<u16, u32>(type, Type::U32, adds);
      case Type::S16: return emitWide<s16, s32>(type, Type::S32, adds);
      case Type::U32: return emitWide<u32, u64>(type, Type::U64, adds);
      case Type::S32: return emitWide<s32, s64>(type, Type::S64, adds);
      default: refuse("type not supported here");
    }
  }

  void fma() {
    FloatStyle style = takeStyle();
    emitFloat<Fma, 3>(takeType(), style);
  }

  void div() {
    ignore({"approx", "full"});
    FloatStyle style = takeStyle();
    Type type = takeType();
    if (isFloat(type)) return emitFloat<Div, 2>(type, style);
    emitInt<DivInt, 2>(type);
  }
  void rem() { emitInt<RemInt, 2>(takeType()); }

  void abs() {
    bool ftz = take("ftz");
    Type type = takeType();
    if (isFloat(type)) return emitFloat<AbsFloat, 1>(type, {Round::Nearest, ftz, false});
    emitInt<AbsInt, 1>(type);
  }
  void neg() {
    bool ftz = take("ftz");
    Type type = takeType();
    if (isFloat(type)) return emitFloat<NegFloat, 1>(type, {Round::Nearest, ftz, false});
    emitInt<NegInt, 1>(type);
  }

  template <bool Min>
  void minMax() {
    bool ftz = take("ftz"), nan = take("NaN");
    Type type = takeType();
    using Int = std::conditional_t<Min, MinInt, MaxInt>;
    if (type == Type::U16x2) return emitSame<Twice<Int>, u32, 2>(type);
    if (type == Type::S16x2) return emitSame<TwiceSigned<Int>, u32, 2>(type);
    if (!isFloat(type)) return emitInt<Int, 2>(type);
    FloatStyle style{Round::Nearest, ftz, false};
    if (nan) emitFloat<std::conditional_t<Min, MinNan, MaxNan>, 2>(type, style);
    else emitFloat<std::conditional_t<Min, MinFloat, MaxFloat>, 2>(type, style);
  }

  void sad() { emitInt<Sad, 3>(takeType()); }

  template <class Op>
  void floatUnary() {
    ignore({"approx", "full"});
    FloatStyle style = takeStyle();
    emitFloat<Op, 1>(takeType(), style);
  }

  void copysign() { emitFloat<CopySign, 2>(takeType(), {}); }

  // --- bits ---------------------------------------------------------------

  template <class Op, Join How>
  void logic() {
    Type type = takeType();
    if (type != Type::Pred) return emitBits<Op, 2>(type);
    need(3);
    u32 a = predicateOf(operand(1)), b = predicateOf(operand(2));
    Ins& i = emit(predicateLogic, {dstPredicate(operand(0).name), a, b});
    i.a0 = u32(How), i.a1 = operand(1).negated ? kAllLanes : 0;
    if (operand(2).negated) refuse("negated predicate");
  }

  void copyPredicate(u32 result) {
    need(2);
    u32 a = predicateOf(operand(1));
    Ins& i = emit(predicateLogic, {dstPredicate(operand(0).name), a});
    i.a0 = u32(Join::None), i.imm = s64(u64(result));
    i.a1 = operand(1).negated ? kAllLanes : 0;
  }

  void invert() {
    Type type = takeType();
    if (type == Type::Pred) return copyPredicate(kAllLanes);
    emitBits<Not, 1>(type);
  }
  void cnot() { emitBits<CNot, 1>(takeType()); }

  template <class Op, class T>
  void emitShift(Type type) {
    u32 a = src(1, type), n = src(2, Type::U32);
    emitBinary<Op, T, T, u32>(dst(size_t(0), bytesOf(type)), a, n);
  }
  void shl() {
    need(3);
    Type type = takeType();
    switch (bytesOf(type)) {
      case 2: return emitShift<Shl, u16>(type);
      case 4: return emitShift<Shl, u32>(type);
      case 8: return emitShift<Shl, u64>(type);
      default: refuse("type not supported here");
    }
  }
  void shr() {
    need(3);
    Type type = takeType();
    switch (type) {
      case Type::S16: return emitShift<Shr, s16>(type);
      case Type::S32: return emitShift<Shr, s32>(type);
      case Type::S64: return emitShift<Shr, s64>(type);
      case Type::B16: case Type::U16: return emitShift<Shr, u16>(type);
      case Type::B32: case Type::U32: return emitShift<Shr, u32>(type);
      case Type::B64: case Type::U64: return emitShift<Shr, u64>(type);
      default: refuse("type not supported here");
    }
  }
  void shf() {
    bool left = take("l");
    if (!left && !take("r")) refuse("l or r is missing");
    bool wrap = take("wrap");
    take("clamp");
    Type type = takeType();
    if (left && wrap) emitSame<FunnelLeft<true>, u32, 3>(type);
    else if (left) emitSame<FunnelLeft<false>, u32, 3>(type);
    else if (wrap) emitSame<FunnelRight<true>, u32, 3>(type);
    else emitSame<FunnelRight<false>, u32, 3>(type);
  }
  void lop3Table() {
    Type type = takeType();
    need(5);
    u32 a = src(1, type), b = src(2, type), c = src(3, type);
    u32 d = dst(size_t(0), 4);
    emit(lop3<true>, lop3<false>, {d, a, b, c}).a0 = u32(operand(4).value);
  }

  template <class Op, class T>
  void emitCount(Type type) {
    need(2);
    u32 a = src(1, type);
    emitUnary<Op, u32, T>(dst(size_t(0), 4), a);
  }
  void popc() {
    Type type = takeType();
    if (bytesOf(type) == 8) emitCount<PopCount, u64>(type);
    else emitCount<PopCount, u32>(type);
  }
  void clz() {
    Type type = takeType();
    if (bytesOf(type) == 8) emitCount<CountZeros, u64>(type);
    else emitCount<CountZeros, u32>(type);
  }
  template <bool Amount>
  void emitFind(Type type) {
    switch (type) {
      case Type::U32: return emitCount<FindBit<Amount>, u32>(type);
      case Type::S32: return emitCount<FindBit<Amount>, s32>(type);
      case Type::U64: return emitCount<FindBit<Amount>, u64>(type);
      case Type::S64: return emitCount<FindBit<Amount>, s64>(type);
      default: refuse("type not supported here");
    }
  }
  void bfind() {
    bool amount = take("shiftamt");
    Type type = takeType();
    if (amount) emitFind<true>(type);
    else emitFind<false>(type);
  }
  void brev() { emitBits<Reverse, 1>(takeType()); }

  template <class T>
  void emitExtract(Type type) {
    need(4);
    u32 a = src(1, type), b = src(2, Type::U32), c = src(3, Type::U32);
    emitTernary<ExtractField, T, T, u32, u32>(dst(size_t(0), bytesOf(type)), a, b, c);
  }
  void bfe() {
    Type type = takeType();
    switch (type) {
      case Type::U32: return emitExtract<u32>(type);
      case Type::S32: return emitExtract<s32>(type);
      case Type::U64: return emitExtract<u64>(type);
      case Type::S64: return emitExtract<s64>(type);
      default: refuse("type not supported here");
    }
  }
  void bfi() {
    Type type = takeType();
    need(5);
    u32 a = src(1, type), b = src(2, type), c = src(3, Type::U32), e = src(4, Type::U32);
    u32 d = dst(size_t(0), bytesOf(type));
    if (bytesOf(type) == 8) emit(insertField<u64, true>, insertField<u64, false>, {d, a, b, c, e});
    else emit(insertField<u32, true>, insertField<u32, false>, {d, a, b, c, e});
  }
  void prmt() {
    Type type = takeType();
    if (take("f4e")) return emitSame<PermuteBy<PermuteMode::F4e>, u32, 3>(type);
    if (take("b4e")) return emitSame<PermuteBy<PermuteMode::B4e>, u32, 3>(type);
    if (take("rc8")) return emitSame<PermuteBy<PermuteMode::Rc8>, u32, 3>(type);
    if (take("ecl")) return emitSame<PermuteBy<PermuteMode::Ecl>, u32, 3>(type);
    if (take("ecr")) return emitSame<PermuteBy<PermuteMode::Ecr>, u32, 3>(type);
    if (take("rc16")) return emitSame<PermuteBy<PermuteMode::Rc16>, u32, 3>(type);
    emitSame<Permute, u32, 3>(type);
  }
  void dp4a() {
    bool a = isSigned(takeType()), b = isSigned(takeType());
    if (a && b) emitSame<DotBytes<s8, s8>, u32, 3>(Type::B32);
    else if (a) emitSame<DotBytes<s8, u8>, u32, 3>(Type::B32);
    else if (b) emitSame<DotBytes<u8, s8>, u32, 3>(Type::B32);
    else emitSame<DotBytes<u8, u8>, u32, 3>(Type::B32);
  }

  // --- comparison and selection -------------------------------------------

  struct Test {
    Join join = Join::None;
    u32 p, q = kNone, c = kNone, notC = 0;
    u32 a, b;
  };

  template <class Op, class T>
  void emitTest(const Test& t) {
    Ins& i = emit(compare<Op, T, true>, compare<Op, T, false>, {t.p, t.a, t.b, t.q, t.c});
    i.a0 = u32(t.join), i.a1 = t.notC;
  }

  template <class Op>
  void emitFloatTest(Type type, bool ftz, const Test& t) {
    switch (type) {
      case Type::F32:
        if (ftz) return emitTest<FtzTest<Op>, float>(t);
        return emitTest<Op, float>(t);
      case Type::F64: return emitTest<Op, double>(t);
      case Type::F16: return emitTest<NarrowTest<Op, Half>, u16>(t);
      case Type::BF16: return emitTest<NarrowTest<Op, Brain>, u16>(t);
      default: refuse("type not supported here");
    }
  }

  template <class Op>
  void emitIntTest(Type type, const Test& t) {
    switch (type) {
      case Type::B16: case Type::U16: return emitTest<Op, u16>(t);
      case Type::S16: return emitTest<Op, s16>(t);
      case Type::B32: case Type::U32: return emitTest<Op, u32>(t);
      case Type::S32: return emitTest<Op, s32>(t);
      case Type::B64: case Type::U64: return emitTest<Op, u64>(t);
      case Type::S64: return emitTest<Op, s64>(t);
      default: refuse("type not supported here");
    }
  }

  void emitComparison(std::string_view how, Type type, bool ftz, const Test& t) {
    bool f = isFloat(type);
    if (f && how == "equ") return emitFloatTest<EqU>(type, ftz, t);
    if (f && how == "neu") return emitFloatTest<NeU>(type, ftz, t);
    if (f && how == "ltu") return emitFloatTest<LtU>(type, ftz, t);
    if (f && how == "leu") return emitFloatTest<LeU>(type, ftz, t);
    if (f && how == "gtu") return emitFloatTest<GtU>(type, ftz, t);
    if (f && how == "geu") return emitFloatTest<GeU>(type, ftz, t);
    if (f && how == "num") return emitFloatTest<Num>(type, ftz, t);
    if (f && how == "nan") return emitFloatTest<NaN>(type, ftz, t);
    if (how == "eq") return f ? emitFloatTest<Eq>(type, ftz, t) : emitIntTest<Eq>(type, t);
    if (how == "ne") return f ? emitFloatTest<Ne>(type, ftz, t) : emitIntTest<NeInt>(type, t);
    if (how == "lt" || how == "lo")
      return f ? emitFloatTest<Lt>(type, ftz, t) : emitIntTest<Lt>(type, t);
    if (how == "le" || how == "ls")
      return f ? emitFloatTest<Le>(type, ftz, t) : emitIntTest<Le>(type, t);
    if (how == "gt" || how == "hi")
      return f ? emitFloatTest<Gt>(type, ftz, t) : emitIntTest<Gt>(type, t);
    if (how == "ge" || how == "hs")
      return f ? emitFloatTest<Ge>(type, ftz, t) : emitIntTest<Ge>(type, t);
    refuse("comparison not supported");
  }

  Join takeJoin() {
    return take("and") ? Join::And : take("or") ? Join::Or : take("xor") ? Join::Xor : Join::None;
  }

  std::string_view takeFirst() {
    if (modifiers_.size() < 2) refuse("a modifier is missing");
    return std::exchange(modifiers_[1], {});
  }

  void setp() {
    std::string_view how = takeFirst();
    Test t;
    t.join = takeJoin();
    bool ftz = take("ftz");
    Type type = takeType();
    need(t.join == Join::None ? 3 : 4);
    t.a = src(1, type), t.b = src(2, type);
    if (t.join != Join::None) {
      t.c = predicateOf(operand(3));
      t.notC = operand(3).negated ? kAllLanes : 0;
    }
    t.p = dstPredicate(operand(0).name);
    if (!operand(0).second.empty()) t.q = dstPredicate(operand(0).second);
    emitComparison(how, type, ftz, t);
  }

  // set: a comparison whose result is all ones, or 1.0, or zero.
  void set() {
    std::string_view how = takeFirst();
    Test t;
    t.join = takeJoin();
    bool ftz = take("ftz");
    Type to = takeType(), type = takeType();
    if (bytesOf(to) != 4) refuse("type not supported here");
    t.a = src(1, type), t.b = src(2, type);
    if (t.join != Join::None) {
      t.c = predicateOf(operand(3));
      t.notC = operand(3).negated ? kAllLanes : 0;
    }
    t.p = touch(newRegister(0), true);
    emitComparison(how, type, ftz, t);
    u32 yes = constant(4, to == Type::F32 ? 0x3f800000u : 0xffffffffu);
    u32 d = dst(size_t(0), 4);
    emit(select<u32, true>, select<u32, false>, {d, yes, constant(4, 0), t.p});
  }

  void emitSelect(int bytes, u32 d, u32 a, u32 b, u32 p, bool negated) {
    Ins& i = bytes == 2   ? emit(select<u16, true>, select<u16, false>, {d, a, b, p})
             : bytes == 4 ? emit(select<u32, true>, select<u32, false>, {d, a, b, p})
                          : emit(select<u64, true>, select<u64, false>, {d, a, b, p});
    i.a1 = negated ? kAllLanes : 0;
  }

  void selp() {
    need(4);
    Type type = takeType();
    u32 a = src(1, type), b = src(2, type), p = predicateOf(operand(3));
    if (bytesOf(type) < 2) refuse("type not supported here");
    emitSelect(bytesOf(type), dst(size_t(0), bytesOf(type)), a, b, p, operand(3).negated);
  }

  void slct() {
    need(4);
    bool ftz = take("ftz");
    Type type = takeType(), test = takeType();
    u32 a = src(1, type), b = src(2, type);
    Test t;
    t.a = src(3, test), t.b = constant(bytesOf(test), 0);
    t.p = touch(newRegister(0), true);
    emitComparison("ge", test, ftz, t);
    emitSelect(bytesOf(type), dst(size_t(0), bytesOf(type)), a, b, t.p, false);
  }

  void testp() {
    std::string_view how = takeFirst();
    Type type = takeType();
    need(2);
    Test t;
    t.a = src(1, type), t.p = dstPredicate(operand(0).name);
    bool f32 = type == Type::F32;
    if (how == "notanumber" || how == "number") {
      t.b = t.a;
      return emitComparison(how == "number" ? "num" : "nan", type, false, t);
    }
    u32 magnitude = touch(newRegister(u8(bytesOf(type))), true);
    if (f32) emitUnary<AbsFloat, float, float>(magnitude, t.a);
    else emitUnary<AbsFloat, double, double>(magnitude, t.a);
    t.a = magnitude;
    t.b = f32 ? constant(4, 0x7f800000u) : constant(8, 0x7ff0000000000000u);
    if (how == "finite") return emitComparison("lt", type, false, t);
    if (how == "infinite") return emitComparison("eq", type, false, t);
    refuse("test not supported");
  }

  // --- moves and conversions ----------------------------------------------

  void mov() {
    Type type = takeType();
    need(2);
    if (type == Type::Pred) return copyPredicate(0);
    if (operand(0).kind == Operand::Vector) return movUnpack(type);
    if (operand(1).kind == Operand::Vector) return movPack(type);
    if (const Symbol* s = operand(1).kind == Operand::Name && !find(operand(1).name)
                              ? symbol(operand(1).name) : nullptr)
      return movAddress(*s);
    emitBits<Move, 1>(type);
  }

  void movAddress(const Symbol& s) {
    u32 from = addressOf(s, operand(1).value);
    Register d = reg(operand(0), true);
    if (d.bytes == 8) emitUnary<Move, u64, u64>(d.id, from);
    else if (d.bytes == 4) emitUnary<IntToInt<u32, u64>, u32, u64>(d.id, from);
    else refuse("register too narrow for an address");
  }

  template <bool Packs>
  void emitParts(int whole, size_t count, const u32* r) {
    Handler full = nullptr, part = nullptr;
    auto set = [&](auto wholeType, auto partType) {
      using W = decltype(wholeType);
      using P = decltype(partType);
      full = Packs ? Handler(pack<W, P, true>) : Handler(unpack<W, P, true>);
      part = Packs ? Handler(pack<W, P, false>) : Handler(unpack<W, P, false>);
    };
    if (whole == 4 && count == 2) set(u32(), u16());
    if (whole == 8 && count == 2) set(u64(), u32());
    if (whole == 8 && count == 4) set(u64(), u16());
    if (!full) refuse("parts of this width are not supported");
    emit(full, part, {r[0], r[1], r[2], r[3], r[4]});
  }

  void movUnpack(Type type) {
    const std::vector<Operand>& parts = operand(0).parts;
    u32 r[5] = {src(1, type), kNone, kNone, kNone, kNone};
    if (parts.size() < 2 || parts.size() > 4) refuse("unexpected number of parts");
    for (size_t k = 0; k < parts.size(); ++k)
      if (parts[k].name != "_") r[1 + k] = dst(parts[k], bytesOf(type) / int(parts.size()));
    emitParts<false>(bytesOf(type), parts.size(), r);
  }

  void movPack(Type type) {
    const std::vector<Operand>& parts = operand(1).parts;
    u32 r[5] = {kNone, kNone, kNone, kNone, kNone};
    if (parts.size() < 2 || parts.size() > 4) refuse("unexpected number of parts");
    Type partType = bytesOf(type) / int(parts.size()) == 2 ? Type::B16 : Type::B32;
    for (size_t k = 0; k < parts.size(); ++k) r[1 + k] = src(parts[k], partType);
    r[0] = dst(size_t(0), bytesOf(type));
    emitParts<true>(bytesOf(type), parts.size(), r);
  }

  Register cvtSource(Type type) {
    const Operand& o = operand(1);
    if (o.kind == Operand::Name && find(o.name)) {
      Register r = reg(o, false);
      if (r.bytes < bytesOf(type)) refuse("register narrower than the type");
      return r;
    }
    return {src(o, type), u8(std::max(bytesOf(type), 2))};
  }

  void cvt() {
    Conversion c{};
    takeConversion(c);
    if (c.to == Type::F16x2 || c.to == Type::BF16x2) return cvtPair(c);
    need(2);
    Register from = cvtSource(c.from);
    Register to = reg(operand(0), true);
    if (to.bytes < bytesOf(c.to)) refuse("register narrower than the type");
    c.toBytes = to.bytes, c.fromBytes = from.bytes;
    if (to.bytes == 0 || from.bytes == 0) refuse("a predicate cannot be converted");
    if (!cvtFast(c, to, from)) emit(convertAny, {to.id, from.id}).list = conversionList(c);
  }

  void takeConversion(Conversion& c) {
    struct Named { const char* name; Round round; bool whole; };
    static const Named kRounds[] = {
        {"rn", Round::Nearest, false}, {"rz", Round::Zero, false}, {"rm", Round::Down, false},
        {"rp", Round::Up, false}, {"rna", Round::Away, false}, {"rni", Round::Nearest, true},
        {"rzi", Round::Zero, true}, {"rmi", Round::Down, true}, {"rpi", Round::Up, true},
    };
    for (const Named& n : kRounds)
      if (take(n.name)) c.round = n.round, c.whole = n.whole;
    c.ftz = take("ftz"), c.saturate = take("sat"), c.relu = take("relu");
    c.to = takeType();
    c.from = takeType();
  }

  const u32* conversionList(const Conversion& c) {
    k_.lists.emplace_back((sizeof c + 3) / 4);
    memcpy(k_.lists.back().data(), &c, sizeof c);
    return k_.lists.back().data();
  }

  void cvtPair(Conversion c) {
    need(3);
    if (c.from != Type::F32) refuse("type not supported here");
    c.to = c.to == Type::F16x2 ? Type::F16 : Type::BF16;
    u32 hi = src(1, Type::F32), lo = src(2, Type::F32);
    emit(convertPair, {dst(size_t(0), 4), hi, lo}).list = conversionList(c);
  }

  template <class S, class A>
  bool fastToInt(const Register& to, const Register& from) {
    if (from.bytes != sizeof(A)) return false;
    if (to.bytes == 2) emitUnary<IntToInt<u16, S>, u16, A>(to.id, from.id);
    else if (to.bytes == 4) emitUnary<IntToInt<u32, S>, u32, A>(to.id, from.id);
    else emitUnary<IntToInt<u64, S>, u64, A>(to.id, from.id);
    return true;
  }

  template <class S>
  bool fastToFloat(const Register& to, const Register& from) {
    if (from.bytes != sizeof(S)) return false;
    emitUnary<Cast<float>, float, S>(to.id, from.id);
    return true;
  }

  template <class D>
  bool fastFromFloat(Round round, const Register& to, const Register& from) {
    switch (round) {
      case Round::Nearest:
        emitUnary<FloatToInt<D, Round::Nearest>, D, float>(to.id, from.id);
        return true;
      case Round::Zero:
        emitUnary<FloatToInt<D, Round::Zero>, D, float>(to.id, from.id);
        return true;
      case Round::Down:
        emitUnary<FloatToInt<D, Round::Down>, D, float>(to.id, from.id);
        return true;
      default: return false;
    }
  }

  bool fastWhole(Round round, const Register& to, const Register& from) {
    switch (round) {
      case Round::Nearest:
        emitUnary<WholeFloat<Round::Nearest>, float, float>(to.id, from.id);
        return true;
      case Round::Zero:
        emitUnary<WholeFloat<Round::Zero>, float, float>(to.id, from.id);
        return true;
      case Round::Down:
        emitUnary<WholeFloat<Round::Down>, float, float>(to.id, from.id);
        return true;
      case Round::Up:
        emitUnary<WholeFloat<Round::Up>, float, float>(to.id, from.id);
        return true;
      default: return false;
    }
  }

  bool cvtFast(const Conversion& c, const Register& to, const Register& from) {
    if (c.saturate || c.ftz || c.relu) return false;
    if (!isFloat(c.to) && !isFloat(c.from)) {
      if (to.bytes != std::max(bytesOf(c.to), 2) || bytesOf(c.to) == 1) return false;
      switch (c.from) {
        case Type::U8: return fastToInt<u8, u16>(to, from);
        case Type::S8: return fastToInt<s8, u16>(to, from);
        case Type::U16: return fastToInt<u16, u16>(to, from);
        case Type::S16: return fastToInt<s16, u16>(to, from);
        case Type::U32: return fastToInt<u32, u32>(to, from);
        case Type::S32: return fastToInt<s32, u32>(to, from);
        case Type::U64: return fastToInt<u64, u64>(to, from);
        case Type::S64: return fastToInt<s64, u64>(to, from);
        default: return false;
      }
    }
    bool nearest = c.round == Round::Nearest;
    if (c.to == Type::F32) {
      if (c.from == Type::F32 && c.whole) return fastWhole(c.round, to, from);
      if (!nearest || c.whole) return false;
      switch (c.from) {
        case Type::U16: return fastToFloat<u16>(to, from);
        case Type::S16: return fastToFloat<s16>(to, from);
        case Type::U32: return fastToFloat<u32>(to, from);
        case Type::S32: return fastToFloat<s32>(to, from);
        case Type::U64: return fastToFloat<u64>(to, from);
        case Type::S64: return fastToFloat<s64>(to, from);
        case Type::F64: emitUnary<Cast<float>, float, double>(to.id, from.id); return true;
        case Type::F16: emitUnary<LoadHalf, float, u16>(to.id, from.id); return true;
        case Type::BF16: emitUnary<LoadBrain, float, u16>(to.id, from.id); return true;
        default: return false;
      }
    }
    if (c.from != Type::F32) return false;
    if (c.to == Type::S32 && to.bytes == 4) return fastFromFloat<s32>(c.round, to, from);
    if (c.to == Type::U32 && to.bytes == 4) return fastFromFloat<u32>(c.round, to, from);
    if (c.to == Type::F64) return emitUnary<Cast<double>, double, float>(to.id, from.id), true;
    if (!nearest) return false;
    if (c.to == Type::F16 && to.bytes == 2)
      return emitUnary<StoreHalf, u16, float>(to.id, from.id), true;
    if (c.to == Type::BF16 && to.bytes == 2)
      return emitUnary<StoreBrain, u16, float>(to.id, from.id), true;
    return false;
  }

  // Every space has real addresses, so that nothing changes.
  void cvta() {
    ignore({"to", "global", "shared", "shared::cta", "local", "const", "param", "param::entry"});
    Type type = takeType();
    if (bytesOf(type) != 8) refuse("only 64-bit addresses are supported");
    if (const Symbol* s = find(operand(1).name) ? nullptr : symbol(operand(1).name))
      return movAddress(*s);
    emitBits<Move, 1>(type);
  }

  // --- memory -------------------------------------------------------------

  Space takeSpace() {
    if (take("global") || take("const")) return Space::Global;
    if (take("shared") || take("shared::cta")) return Space::Shared;
    if (take("local")) return Space::Local;
    if (take("param") || take("param::entry") || take("param::func")) return Space::Param;
    return Space::Generic;
  }

  void ignoreCaching() {
    ignore({"volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "mmio", "cta", "gpu",
            "sys", "cluster", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt", "unified",
            "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
            "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B"});
  }

  // The registers of a loaded or stored operand.
  struct Values {
    int count = 1;
    int bytes = 0;  // of each register
    u32 r[4] = {kNone, kNone, kNone, kNone};
  };

  void addValue(Values& v, size_t k, const Operand& o, Type type, bool defines) {
    if (o.kind == Operand::Name && o.name == "_" && defines) return;
    if (o.kind == Operand::Number) {
      if (!v.bytes) v.bytes = std::max(bytesOf(type), 2);
      v.r[k] = number(o, type, v.bytes);
      return;
    }
    Register r = reg(o, defines);
    if (v.bytes && v.bytes != r.bytes) refuse("registers of different widths");
    if (r.bytes < std::max(bytesOf(type), 2)) refuse("register narrower than the type");
    v.bytes = r.bytes;
    v.r[k] = r.id;
  }

  Values values(const Operand& o, Type type, bool defines) {
    int count = take("v4") ? 4 : take("v2") ? 2 : 1;
    Values v;
    v.count = count;
    if (count == 1) {
      addValue(v, 0, o, type, defines);
      return v;
    }
    if (o.kind != Operand::Vector || int(o.parts.size()) != count) refuse("expected a vector");
    for (size_t k = 0; k < o.parts.size(); ++k) {
      if (o.parts[k].kind == Operand::Name && o.parts[k].name != "_" && !v.bytes)
        v.bytes = reg(o.parts[k], defines).bytes;  // numbers take the registers' width
    }
    for (size_t k = 0; k < o.parts.size(); ++k) addValue(v, k, o.parts[k], type, defines);
    if (!v.bytes) v.bytes = std::max(bytesOf(type), 2);
    return v;
  }

  template <bool Loads, class M, class R>
  Ins& emitAccessOf(u32 a, const Values& v) {
    auto handlers = [&](auto count) -> Ins& {
      constexpr int n = decltype(count)::value;
      Handler full = Loads ? Handler(load<M, R, n, true>) : Handler(store<M, R, n, true>);
      Handler part = Loads ? Handler(load<M, R, n, false>) : Handler(store<M, R, n, false>);
      return emit(full, part, {a, v.r[0], v.r[1], v.r[2], v.r[3]});
    };
    if (v.count == 4) return handlers(std::integral_constant<int, 4>());
    if (v.count == 2) return handlers(std::integral_constant<int, 2>());
    return handlers(std::integral_constant<int, 1>());
  }

  template <bool Loads, class M>
  Ins& emitAccess(u32 a, const Values& v) {
    if constexpr (sizeof(M) <= 2)
      if (v.bytes == 2) return emitAccessOf<Loads, M, u16>(a, v);
    if constexpr (sizeof(M) <= 4)
      if (v.bytes == 4) return emitAccessOf<Loads, M, u32>(a, v);
    if (v.bytes == 8) return emitAccessOf<Loads, M, u64>(a, v);
    refuse("register of a width that is not supported here");
  }

  template <bool Loads>
  void access(Type type, Space space, u32 a, const Values& v, u64 offset) {
    Ins* i;
    switch (type) {
      case Type::S8: i = &(Loads ? emitAccess<Loads, s8>(a, v) : emitAccess<Loads, u8>(a, v)); break;
      case Type::S16:
        i = &(Loads ? emitAccess<Loads, s16>(a, v) : emitAccess<Loads, u16>(a, v));
        break;
      case Type::S32:
        i = &(Loads ? emitAccess<Loads, s32>(a, v) : emitAccess<Loads, u32>(a, v));
        break;
      default:
        switch (bytesOf(type)) {
          case 1: i = &emitAccess<Loads, u8>(a, v); break;
          case 2: i = &emitAccess<Loads, u16>(a, v); break;
          case 4: i = &emitAccess<Loads, u32>(a, v); break;
          case 8: i = &emitAccess<Loads, u64>(a, v); break;
          default: refuse("type not supported here");
        }
    }
    i->a0 = u32(space);
    i->imm = s64(offset);
  }

  void ld() {
    Space space = takeSpace();
    ignoreCaching();
    Type type = takeType();
    need(2);
    Operand from = operand(1);
    const Symbol* s = find(from.name) ? nullptr : symbol(from.name);
    bool plain = operand(0).kind == Operand::Name;
    if (space == Space::Param && s && s->kind == Symbol::Parameter && plain)
      return ldParameter(type, *s, from.value);
    u32 a = address(from);
    Values v = values(operand(0), type, true);
    access<true>(type, space, a, v, from.value);
  }

  template <class M>
  Handler parameterHandler(int bytes) {
    if (bytes == 2) return loadParameter<M, u16>;
    if (bytes == 4) return loadParameter<M, u32>;
    return loadParameter<M, u64>;
  }

  void ldParameter(Type type, const Symbol& s, u64 offset) {
    if (offset + u64(bytesOf(type)) > s.bytes) refuse("outside the parameter");
    Register d = reg(operand(0), true);
    if (d.bytes < std::max(bytesOf(type), 2)) refuse("register narrower than the type");
    Handler h = nullptr;
    switch (type) {
      case Type::S8: h = parameterHandler<s8>(d.bytes); break;
      case Type::S16: h = parameterHandler<s16>(d.bytes); break;
      case Type::S32: h = parameterHandler<s32>(d.bytes); break;
      default:
        h = bytesOf(type) == 1   ? parameterHandler<u8>(d.bytes)
            : bytesOf(type) == 2 ? parameterHandler<u16>(d.bytes)
            : bytesOf(type) == 4 ? parameterHandler<u32>(d.bytes)
                                 : parameterHandler<u64>(d.bytes);
    }
    emit(h, {kNone, d.id}).imm = s64(s.value + offset);
  }

  void st() {
    Space space = takeSpace();
    ignoreCaching();
    Type type = takeType();
    need(2);
    u32 a = address(operand(0));
    Values v = values(operand(1), type, false);
    access<false>(type, space, a, v, operand(0).value);
  }

  void hint() {  // nothing to do: everything is done in order
    for (std::string_view& m : modifiers_) m = {};
    emit(nothing, {});
  }

  void isspacep() {
    Space space = takeSpace();
    need(2);
    u32 a = src(1, Type::U64);
    emit(isSpace, {dstPredicate(operand(0).name), a}).a0 = u32(space);
  }

  template <class Op, class... T>
  Handler atomicFor(Type type) {
    Handler h = nullptr;
    ((typeOf<T>() == type ? void(h = atomic<Op, T>) : void()), ...);
    if (!h) refuse("type not supported here");
    return h;
  }
  template <class T>
  static constexpr Type typeOf() {
    if (std::is_same_v<T, u32>) return Type::U32;
    if (std::is_same_v<T, s32>) return Type::S32;
    if (std::is_same_v<T, u64>) return Type::U64;
    if (std::is_same_v<T, s64>) return Type::S64;
    if (std::is_same_v<T, float>) return Type::F32;
    if (std::is_same_v<T, double>) return Type::F64;
    return Type::None;
  }

  Handler atomicHandler(std::string_view what, Type type) {
    Type bits = bytesOf(type) == 8 ? Type::U64 : Type::U32;
    if (what == "add") {
      if (type == Type::F16) return atomic<Narrow<Add, Half>, u16>;
      if (type == Type::BF16) return atomic<Narrow<Add, Brain>, u16>;
      if (type == Type::F16x2) return atomic<Twice<Narrow<Add, Half>>, u32>;
      if (type == Type::BF16x2) return atomic<Twice<Narrow<Add, Brain>>, u32>;
      if (type == Type::S32 || type == Type::S64) type = bits;
      return atomicFor<Add, u32, u64, float, double>(type);
    }
    if (what == "min") return atomicFor<MinInt, u32, s32, u64, s64>(type);
    if (what == "max") return atomicFor<MaxInt, u32, s32, u64, s64>(type);
    if (what == "inc") return atomicFor<Increment, u32>(type);
    if (what == "dec") return atomicFor<Decrement, u32>(type);
    if (what == "and") return atomicFor<And, u32, u64>(bits);
    if (what == "or") return atomicFor<Or, u32, u64>(bits);
    if (what == "xor") return atomicFor<Xor, u32, u64>(bits);
    if (what == "exch") return atomicFor<Exchange, u32, u64>(bits);
    refuse("atomic operation not supported");
  }

  template <bool Returns>
  void atom() {
    Space space = takeSpace();
    ignoreCaching();
    take("noftz");
    Type type = takeType();
    std::string_view what;
    for (std::string_view& m : modifiers_)
      if (!m.empty()) what = std::exchange(m, {});
    size_t first = Returns ? 1 : 0;
    u32 a = address(operand(first)), b = src(first + 1, type);
    bool swaps = what == "cas";
    u32 c = swaps ? src(first + 2, type) : kNone;
    need(first + (swaps ? 3 : 2));
    u32 d = Returns && operand(0).name != "_" ? dst(size_t(0), bytesOf(type)) : kNone;
    Handler h = !swaps                 ? atomicHandler(what, type)
                : bytesOf(type) == 2   ? Handler(atomicSwap<u16>)
                : bytesOf(type) == 4   ? Handler(atomicSwap<u32>)
                                       : Handler(atomicSwap<u64>);
    Ins& i = emit(h, {d, a, b, c});
    i.a0 = u32(space), i.imm = s64(operand(first).value);
  }

  void cp() {
    if (!take("async")) refuse("instruction not supported");
    if (take("commit_group") || take("wait_group") || take("wait_all")) {
      emit(nothing, {});
      return;
    }
    ignore({"ca", "cg", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B"});
    u32 to = address(operand(0)), from = address(operand(1));
    u32 read = s_->operands.size() > 3 ? src(3, Type::U32) : kNone;
    if (s_->operands.size() > 4) refuse("cache policy not supported");
    Ins& i = emit(copyAsync, {to, from, read});
    i.a0 = u32(operand(2).value), i.a1 = u32(operand(0).value);
    i.imm = s64(operand(1).value);
  }

  // --- control and synchronisation ----------------------------------------

  std::string_view targetName() {
    need(1);
    return operand(0).name;
  }

  void bra() {
    take("uni");
    u32 p = guardRegister();
    branchTo(label(targetName()), p, s_->guardNegated);
  }

  void brx() {
    if (!take("idx")) refuse("instruction not supported");
    take("uni");
    need(2);
    u32 index = src(0, Type::U32);
    auto targets = frames_.back().targets.find(operand(1).name);
    if (targets == frames_.back().targets.end()) refuse("unknown list of targets");
    k_.lists.emplace_back();
    for (const Operand& o : targets->second->operands) k_.lists.back().push_back(label(o.name));
    labelLists_.push_back(&k_.lists.back());
    Ins& i = emit(branchIndexed, {index});
    i.list = k_.lists.back().data(), i.a0 = u32(k_.lists.back().size());
    ++block_;
  }

  void ret() {
    take("uni");
    u32 p = guardRegister();
    if (frames_.back().endLabel != kNone)
      return branchTo(frames_.back().endLabel, p, s_->guardNegated);
    emit(exitLanes, {p}).a1 = s_->guardNegated ? kAllLanes : 0;
    ++block_;
  }
  void exitKernel() {
    emit(exitLanes, {guardRegister()}).a1 = s_->guardNegated ? kAllLanes : 0;
    ++block_;
  }
  void trap() { emit(trapLanes, {}); }

  // A call puts the function's body here.
  void call() {
    take("uni");
    std::vector<const Operand*> results, arguments;
    std::string_view name;
    for (const Operand& o : s_->operands) {
      std::vector<const Operand*>& list = name.empty() ? results : arguments;
      if (o.kind == Operand::Name && name.empty()) name = o.name;
      else if (o.kind == Operand::Group)
        for (const Operand& part : o.parts) list.push_back(&part);
    }
    auto found = source_.functions.find(name);
    if (found == source_.functions.end() || found->second.entry)
      refuse("the function is not in the module");
    const Function& f = found->second;
    if (frames_.size() > 64) refuse("calls too deep or recursive");
    if (f.parameters.size() != arguments.size() || f.results.size() != results.size())
      refuse("unexpected number of arguments");
    Frame frame;
    auto bind = [&](const Variable& v, const Operand& o) {
      const Symbol* s = symbol(o.name);
      if (!s || s->bytes < v.bytes) refuse("argument is not a matching .param variable");
      frame.symbols[v.name] = *s;
    };
    for (size_t n = 0; n < results.size(); ++n) bind(f.results[n], *results[n]);
    for (size_t n = 0; n < arguments.size(); ++n) bind(f.parameters[n], *arguments[n]);
    u32 end = frame.endLabel = newLabel();
    std::vector<std::string_view> own = modifiers_;
    frames_.push_back(std::move(frame));
    ++block_;
    decodeBody(f);
    frames_.pop_back();
    place(end);
    modifiers_ = own;
  }

  void bar() {
    take("cta");
    take("aligned");
    if (take("warp")) {
      take("sync");
      u32 members = src(0, Type::B32);
      emit(warpBarrier, {members});
      return;
    }
    if (!take("sync")) refuse("kind of barrier not supported");
    if (s_->operands.size() > 2) refuse("unexpected number of operands");
    for (const Operand& o : s_->operands)
      if (o.kind != Operand::Number) refuse("barrier operands must be numbers");
    if (operand(0).value > 15) refuse("no such barrier");
    Ins& i = emit(barrier, {});
    i.a0 = u32(operand(0).value);
    if (s_->operands.size() > 1) i.a1 = u32(operand(1).value);
  }

  void shfl() {
    if (!take("sync")) refuse("only the .sync form is supported");
    Shuffle how = take("up")     ? Shuffle::Up
                  : take("down") ? Shuffle::Down
                  : take("bfly") ? Shuffle::Butterfly : Shuffle::Index;
    take("idx");
    takeType();
    need(5);
    u32 a = src(1, Type::B32), b = src(2, Type::B32), c = src(3, Type::B32);
    u32 members = src(4, Type::B32), d = dst(size_t(0), 4);
    u32 p = operand(0).second.empty() ? kNone : dstPredicate(operand(0).second);
    if (p == kNone && operand(2).kind == Operand::Number && operand(3).kind == Operand::Number) {
      emit(shuffleFixed, {d, a, b, c, members}).list = shuffleLanes(how);
      return;
    }
    emit(shuffle, {d, a, b, c, members, p}).a0 = u32(how);
  }

  const u32* shuffleLanes(Shuffle how) {
    k_.lists.emplace_back();
    bool inside;
    for (int l = 0; l < kLanes; ++l)
      k_.lists.back().push_back(
          u32(shuffleSource(how, l, u32(operand(2).value), u32(operand(3).value), inside)));
    return k_.lists.back().data();
  }

  void voteSync() {
    if (!take("sync")) refuse("only the .sync form is supported");
    Vote how = take("all")   ? Vote::All
               : take("any") ? Vote::Any
               : take("uni") ? Vote::Uniform : Vote::Ballot;
    take("ballot");
    takeType();
    need(3);
    u32 p = predicateOf(operand(1)), members = src(2, Type::B32);
    u32 d = how == Vote::Ballot ? dst(size_t(0), 4) : dstPredicate(operand(0).name);
    Ins& i = emit(vote, {d, p, members});
    i.a0 = u32(how), i.a1 = operand(1).negated ? kAllLanes : 0;
  }

  void match() {
    bool all = take("all");
    take("any");
    if (!take("sync")) refuse("only the .sync form is supported");
    Type type = takeType();
    need(3);
    u32 a = src(1, type), members = src(2, Type::B32), d = dst(size_t(0), 4);
    u32 p = operand(0).second.empty() ? kNone : dstPredicate(operand(0).second);
    emit(bytesOf(type) == 8 ? matchLanes<u64> : matchLanes<u32>, {d, a, members, p}).a0 = all;
  }

  void activemask() {
    takeType();
    emit(activeMask, {dst(size_t(0), 4)});
  }

  void redux() {
    if (!take("sync")) refuse("only the .sync form is supported");
    std::string_view what;
    for (std::string_view op : {"add", "min", "max", "and", "or", "xor"})
      if (take(op)) what = op;
    Type type = takeType();
    need(3);
    u32 a = src(1, type), members = src(2, Type::B32), d = dst(size_t(0), 4);
    bool s = type == Type::S32;
    Handler h = what == "add"   ? reduceLanes<Add, u32>
                : what == "min" ? (s ? Handler(reduceLanes<MinInt, s32>) : reduceLanes<MinInt, u32>)
                : what == "max" ? (s ? Handler(reduceLanes<MaxInt, s32>) : reduceLanes<MaxInt, u32>)
                : what == "and" ? reduceLanes<And, u32>
                : what == "or"  ? reduceLanes<Or, u32>
                : what == "xor" ? reduceLanes<Xor, u32> : nullptr;
    if (!h || bytesOf(type) != 4 || isFloat(type)) refuse("reduction not supported");
    emit(h, {d, a, members});
  }

  // --- matrices -----------------------------------------------------------

  void ldmatrix() {
    if (!take("m8n8") || !take("b16")) refuse("shape not supported");
    ignore({"sync", "aligned", "shared", "shared::cta"});
    bool trans = take("trans");
    u32 count = take("x4") ? 4 : take("x2") ? 2 : 1;
    take("x1");
    need(2);
    u32 a = address(operand(1)), r[4] = {kNone, kNone, kNone, kNone};
    const Operand& to = operand(0);
    if (to.kind != Operand::Vector || to.parts.size() != count) refuse("expected a vector");
    for (u32 k = 0; k < count; ++k) r[k] = dst(to.parts[k], 4);
    Ins& i = emit(loadMatrix, {a, r[0], r[1], r[2], r[3]});
    i.a0 = count, i.a1 = trans, i.imm = s64(operand(1).value);
  }

  void mma() {
    ignore({"sync", "aligned", "row", "col"});
    int k = 0;
    for (int depth : {4, 8, 16, 32})
      if (take(format("m16n8k%d", depth))) k = depth;
    Type d = takeType(), a = takeType(), b = takeType(), c = takeType();
    u32 kind = 0;
    for (; kind < kMatrixKinds; ++kind) {
      const MatrixShape& s = g_shapes[kind];
      if (s.k == k && s.a == a && s.b == b && s.c == c && c == d) break;
    }
    if (kind == kMatrixKinds) refuse("shape or types not supported");
    need(4);
    k_.lists.emplace_back();
    std::vector<u32>& list = k_.lists.back();
    for (size_t n = 0; n < 4; ++n)
      for (const Operand& o : operand(n).parts)
        list.push_back(o.kind == Operand::Number ? constant(4, o.value) : sized(o, 4, n == 0));
    int packed = 4 / std::max(1, bytesOf(a)), sums = c == Type::F16 ? 2 : 4;
    if (int(list.size()) != 2 * sums + 24 * k / (kLanes * packed))
      refuse("unexpected number of registers");
    registerLists_.push_back(&list);
    Ins& i = emit(multiplyMatrices, {});
    i.a0 = kind, i.list = list.data();
  }

  // --- finishing ----------------------------------------------------------

  // Registers that live in one basic block share places with others.
  std::vector<u32> placeRegisters() {
    std::vector<u32> offsets(lives_.size(), 0), order(lives_.size());
    for (u32 id = 0; id < order.size(); ++id) order[id] = id;
    std::stable_sort(order.begin(), order.end(),
                     [&](u32 a, u32 b) { return lives_[a].first < lives_[b].first; });
    u32 end = 0;
    std::map<u8, std::multimap<u32, u32>> busy;  // by width: last use, offset
    for (u32 id : order) {
      const Life& life = lives_[id];
      u32 size = std::max<u32>(life.bytes * kLanes, 64);
      bool local = !life.fixed && life.definedFirst && life.firstBlock == life.lastBlock;
      std::multimap<u32, u32>& list = busy[life.bytes];
      if (local && !list.empty() && list.begin()->first < life.first) {
        offsets[id] = list.begin()->second;
        list.erase(list.begin());
      } else {
        offsets[id] = end;
        end += size;
      }
      if (local) list.emplace(life.last, offsets[id]);
    }
    k_.registerBytes = std::max<u32>(end, 64);
    return offsets;
  }

  void finish() {
    std::vector<u32> offsets = placeRegisters();
    for (Ins& i : k_.code)
      for (u32& r : i.r)
        if (r != kNone) r = offsets[r];
    for (std::vector<u32>* list : registerLists_)
      for (u32& r : *list) r = offsets[r];
    for (Preset& p : k_.presets) p.reg = offsets[p.reg];
    auto placed = [&](u32 label) {
      if (labels_[label] == kNone) refuse("a branch goes to a label that is not there");
      return labels_[label];
    };
    for (const Fixup& f : fixups_) k_.code[f.ins].target = k_.code.data() + placed(f.label);
    for (std::vector<u32>* list : labelLists_)
      for (u32& l : *list) l = placed(l);
    k_.staticShared = (k_.staticShared + 127) / 128 * 128;
    k_.localBytes = (k_.localBytes + 63) / 64 * 64;
  }

  const Source& source_;
  const Symbols& globals_;
  Kernel& k_;
  const Statement* s_ = nullptr;
  std::string_view name_;
  std::vector<std::string_view> modifiers_;
  std::deque<Frame> frames_;
  std::deque<Life> lives_{Life{0}};  // id 0 means no preset yet
  std::map<std::pair<u64, u64>, u32> presets_;
  std::vector<u32> labels_;  // instruction numbers
  std::vector<Fixup> fixups_;
  std::vector<std::vector<u32>*> registerLists_, labelLists_;
  u32 statement_ = 0, block_ = 0;
};

}  // namespace
