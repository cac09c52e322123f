#pragma once

#include "handlers.h"

namespace {

// ---------------------------------------------------------------------------
// Running a block and a grid.

bool isReady(const Warp& w, const Group& g) {
  return g.state == State::Ready ||
         (g.state == State::Parked && !(g.expected & w.live & ~g.mask));
}

// Makes the lanes with the lowest program counter active and returns where
// they stand; null if none can run.
const Ins* pickGroup(Warp& w) {
  const Ins* lowest = nullptr;
  for (const Group& g : w.groups)
    if (isReady(w, g) && (!lowest || g.pc < lowest)) lowest = g.pc;
  if (!lowest) return nullptr;
  w.mask = 0;
  w.stop = endOf(w);
  size_t kept = 0;
  for (const Group& g : w.groups) {
    if (g.pc == lowest && isReady(w, g)) {
      w.mask |= g.mask;
      continue;
    }
    if (g.state != State::Barrier && g.pc > lowest) w.stop = std::min(w.stop, g.pc);
    w.groups[kept++] = g;
  }
  w.groups.resize(kept);
  return lowest;
}

// Runs the warp until all its lanes have exited or wait.
void runWarp(Worker& k, Warp& w) {
  while (const Ins* i = pickGroup(w)) {
    u64 executed = 0;
    do {
      i = (w.mask == kAllLanes ? i->full : i->part)(w, i);
      ++executed;
    } while (i < w.stop);
    k.executed += executed;
    if (w.mask) w.groups.push_back({i, w.mask, State::Ready, 0, 0});
  }
}

// Opens the barriers that all their threads have reached; false if none is.
bool openBarriers(Worker& k) {
  u32 arrived[16] = {}, expected[16] = {}, live = 0;
  for (const Warp& w : k.warps) {
    live += u32(__builtin_popcount(w.live));
    for (const Group& g : w.groups) {
      if (g.state != State::Barrier) continue;
      arrived[g.barrier] += u32(__builtin_popcount(g.mask));
      expected[g.barrier] = g.expected;
    }
  }
  bool opened = false;
  for (u32 b = 0; b < 16; ++b) {
    if (!arrived[b] || arrived[b] < (expected[b] ? expected[b] : live)) continue;
    opened = true;
    for (Warp& w : k.warps)
      for (Group& g : w.groups)
        if (g.state == State::Barrier && g.barrier == b) g.state = State::Ready;
  }
  return opened;
}

[[noreturn]] void failStuck(const Worker& k) {
  for (const Warp& w : k.warps)
    for (const Group& g : w.groups) {
      const Ins* at = g.state == State::Barrier ? g.pc - 1 : g.pc;
      fail(CUDA_ERROR_LAUNCH_FAILED, w, at, __builtin_ctz(g.mask),
           "waits for threads that never arrive");
    }
  throw Fault{CUDA_ERROR_LAUNCH_FAILED, "threads wait for each other"};
}

u64 specialValue(const Worker& k, const Warp& w, const Preset& p, int lane) {
  u32 t = w.index * kLanes + u32(lane);
  u64 below = (u64(1) << lane) - 1;
  switch (p.special) {
    case Special::TidX: return t % k.block[0];
    case Special::TidY: return t / k.block[0] % k.block[1];
    case Special::TidZ: return t / k.block[0] / k.block[1];
    case Special::NtidX: return k.block[0];
    case Special::NtidY: return k.block[1];
    case Special::NtidZ: return k.block[2];
    case Special::CtaidX: return k.ctaid[0];
    case Special::CtaidY: return k.ctaid[1];
    case Special::CtaidZ: return k.ctaid[2];
    case Special::NctaidX: return k.grid[0];
    case Special::NctaidY: return k.grid[1];
    case Special::NctaidZ: return k.grid[2];
    case Special::LaneId: return u64(lane);
    case Special::WarpId: return w.index;
    case Special::NWarpId: return k.warps.size();
    case Special::LaneEq: return below + 1;
    case Special::LaneLt: return below;
    case Special::LaneLe: return 2 * below + 1;
    case Special::LaneGt: return u32(~(2 * below + 1));
    case Special::LaneGe: return u32(~below);
    case Special::SmId: return 0;
    case Special::NSmId: return 1;
    case Special::GridId: return 0;
    case Special::DynamicShared: return k.dynamicBytes;
    case Special::TotalShared: return k.sharedBytes;
    case Special::SharedAddress: return u64(k.shared) + p.value;
    case Special::DynamicAddress: return u64(k.shared) + k.kernel->staticShared + p.value;
    case Special::LocalAddress: return u64(k.localOf(w, lane)) + p.value;
    case Special::ParamAddress: return u64(k.params) + p.value;
  }
  return 0;
}

bool changesByBlock(const Preset& p) {
  return !p.constant && p.special >= Special::CtaidX && p.special <= Special::CtaidZ;
}

void fillPreset(const Worker& k, const Warp& w, const Preset& p) {
  if (!p.bytes) {
    predicate(w, p.reg) = p.value ? kAllLanes : 0;
    return;
  }
  for (int l = 0; l < kLanes; ++l)
    writeLane(w, p.reg, p.bytes, l, p.constant ? p.value : specialValue(k, w, p, l));
}

void* mapMemory(u64 bytes, int flags) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1,
                  0);
  if (at == MAP_FAILED) throw Fault{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "no memory for a block"};
  return at;
}

template <class T>
void growTo(T*& memory, u64& room, u64 bytes) {
  if (bytes <= room) return;
  if (memory) munmap(memory, room);
  memory = nullptr, room = 0;
  memory = static_cast<T*>(mapMemory(bytes, 0));
  room = bytes;
}

struct Launch {
  const Kernel* kernel;
  u32 grid[3], block[3], dynamicBytes;
  const u8* params;
};

// Readies the worker for the blocks of a launch.
void prepare(Worker& k, const Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  k.kernel = &kernel;
  k.params = launch.params;
  std::copy_n(launch.grid, 3, k.grid);
  std::copy_n(launch.block, 3, k.block);
  k.threads = k.block[0] * k.block[1] * k.block[2];
  k.dynamicBytes = launch.dynamicBytes;
  k.sharedBytes = kernel.staticShared + launch.dynamicBytes;
  k.executed = 0;
  u32 warps = (k.threads + kLanes - 1) / kLanes;
#if defined(MAP_32BIT)
  if (!k.shared) k.shared = static_cast<u8*>(mapMemory(kSharedRoom, MAP_32BIT));
#else
  if (!k.shared) k.shared = static_cast<u8*>(mapMemory(kSharedRoom, 0));
#endif
  growTo(k.local, k.localRoom, u64(warps) * kLanes * kernel.localBytes);
  growTo(k.registers, k.registerRoom, u64(warps) * kernel.registerBytes);
  k.cache.assign(kernel.code.size() + 1, Range());
  k.warps.resize(warps);
  for (u32 n = 0; n < warps; ++n) {
    Warp& w = k.warps[n];
    w.registers = k.registers + u64(n) * kernel.registerBytes;
    w.cache = k.cache.data();
    w.code = kernel.code.data();
    w.worker = &k;
    w.index = n;
    memset(w.registers, 0xff, kernel.registerBytes);
    for (const Preset& p : kernel.presets)
      if (!changesByBlock(p)) fillPreset(k, w, p);
  }
}

bool reverseOrder() {
  const char* order = getenv("HLORACLE_EMULATED_ORDER");
  return order && !strcmp(order, "reverse");
}

void runBlock(Worker& k, u64 number, bool reverse) {
  k.ctaid[0] = u32(number % k.grid[0]);
  k.ctaid[1] = u32(number / k.grid[0] % k.grid[1]);
  k.ctaid[2] = u32(number / k.grid[0] / k.grid[1]);
  memset(k.shared, 0xff, k.sharedBytes);
  if (k.kernel->localBytes) memset(k.local, 0xff, k.warps.size() * kLanes * k.kernel->localBytes);
  for (Warp& w : k.warps) {
    u32 lanes = std::min<u32>(kLanes, k.threads - w.index * kLanes);
    w.live = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
    w.groups.assign(1, {w.code, w.live, State::Ready, 0, 0});
    for (const Preset& p : k.kernel->presets)
      if (changesByBlock(p)) fillPreset(k, w, p);
  }
  for (;;) {
    for (size_t n = 0; n < k.warps.size(); ++n)
      runWarp(k, k.warps[reverse ? k.warps.size() - 1 - n : n]);
    bool waiting = false;
    for (const Warp& w : k.warps) waiting = waiting || !w.groups.empty();
    if (!waiting) return;
    if (!openBarriers(k)) failStuck(k);
  }
}

std::vector<std::unique_ptr<Worker>> g_workers;  // guarded by g_device
std::atomic<u64> g_executed{0};

// Runs all blocks of the launch; throws the first fault.
void runGrid(const Launch& launch) {
  u64 blocks = u64(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  u64 workers = std::min<u64>(
      blocks, std::clamp<u64>(environmentNumber("HLORACLE_EMULATED_THREADS", 1), 1, 256));
  while (g_workers.size() < workers) g_workers.push_back(std::make_unique<Worker>());
  bool reverse = reverseOrder();
  std::atomic<u64> next{0};
  std::mutex lock;
  std::unique_ptr<Fault> fault;
  auto work = [&](Worker& k) {
    try {
      prepare(k, launch);
      for (u64 b; (b = next++) < blocks;) runBlock(k, reverse ? blocks - 1 - b : b, reverse);
    } catch (const Fault& f) {
      next = blocks;
      std::lock_guard<std::mutex> hold(lock);
      if (!fault) fault = std::make_unique<Fault>(f);
    }
    g_executed += k.executed;
  };
  std::vector<std::thread> threads;
  for (u64 n = 1; n < workers; ++n) threads.emplace_back(work, std::ref(*g_workers[n]));
  work(*g_workers[0]);
  for (std::thread& t : threads) t.join();
  if (fault) throw *fault;
}

// ---------------------------------------------------------------------------
// Reading PTX: words, statements, modules.

struct Word {
  std::string_view text;
  u32 line;
};

bool isNameChar(char c) { return isalnum(u8(c)) || c == '_' || c == '$' || c == '%' || c == '.'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : s_(source) {
    for (skip(); at_ < s_.size(); skip()) words_.push_back({next(), line_});
    words_.push_back({"", line_});
  }
  std::vector<Word> take() { return std::move(words_); }

 private:
  void skip() {
    while (at_ < s_.size()) {
      if (s_[at_] == '\n') ++line_, ++at_;
      else if (isspace(u8(s_[at_]))) ++at_;
      else if (s_.compare(at_, 2, "//") == 0) at_ = std::min(s_.find('\n', at_), s_.size());
      else if (s_.compare(at_, 2, "/*") == 0) skipComment();
      else return;
    }
  }

  void skipComment() {
    size_t end = std::min(s_.find("*/", at_ + 2), s_.size() - 2) + 2;
    line_ += u32(std::count(s_.begin() + long(at_), s_.begin() + long(end), '\n'));
    at_ = end;
  }

  std::string_view next() {
    size_t start = at_;
    if (s_[at_] == '"') {
      at_ = std::min(s_.find('"', at_ + 1), s_.size() - 1) + 1;
    } else if (isNameChar(s_[at_])) {
      while (at_ < s_.size() && (isNameChar(s_[at_]) || scopeMark())) at_ += scopeMark() ? 2 : 1;
    } else {
      ++at_;
    }
    return s_.substr(start, at_ - start);
  }

  bool scopeMark() const {  // "::" inside a word
    return s_.compare(at_, 2, "::") == 0;
  }

  std::string_view s_;
  size_t at_ = 0;
  u32 line_ = 1;
  std::vector<Word> words_;
};

struct Operand {
  enum Kind { Name, Number, Vector, Address, Group } kind = Name;
  std::string_view name;        // register, symbol or label; base of an address
  std::string_view second;      // after '|'
  bool negated = false;         // '!'
  u64 value = 0;                // number, or offset of an address
  char floating = 0;            // 'f' or 'd' if the number is a float's bits
  std::vector<Operand> parts;   // of a vector, or of a parenthesised group
};

struct Variable {
  enum Place { Shared, Global, Local, Param } place;
  std::string_view name;
  u64 bytes = 0;
  u32 align = 1;
  bool external = false;
  std::vector<u8> initial;
};

struct Statement {
  enum Kind { Instruction, Label, Registers, Declare, Open, Close, Targets } kind;
  std::string_view text;
  u32 line = 0;
  std::string_view op, guard;  // op also holds a label's name
  bool guardNegated = false;
  std::vector<Operand> operands;
  Type type = Type::None;  // of declared registers; operands: their names
  Variable variable;
};

struct Function {
  std::string_view name;
  bool entry = false;
  std::vector<Variable> results, parameters;
  std::vector<Statement> body;
  u32 maxThreads = 0;
  u32 required[3] = {0, 0, 0};
};

struct Source {
  std::vector<Variable> variables;
  std::map<std::string_view, Function> functions;
  std::string_view version, target;
};

u64 parseNumber(std::string_view text, char& floating) {
  floating = 0;
  std::string s(text);
  if (s.size() > 2 && s[0] == '0' && (s[1] == 'f' || s[1] == 'F' || s[1] == 'd' || s[1] == 'D')) {
    floating = char(tolower(s[1]));
    return strtoull(s.c_str() + 2, nullptr, 16);
  }
  if (s.find('.') != std::string::npos) {
    floating = 'd';
    return bitsAs<u64>(strtod(s.c_str(), nullptr));
  }
  if (s.size() > 2 && s[0] == '0' && (s[1] == 'b' || s[1] == 'B'))
    return strtoull(s.c_str() + 2, nullptr, 2);
  return strtoull(s.c_str(), nullptr, 0);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : source_(text), words_(Lexer(text).take()) {}

  Source parse() {
    Source out;
    while (!at("")) parseTop(out);
    return out;
  }

 private:
  std::string_view peek(size_t ahead = 0) const {
    return words_[std::min(now_ + ahead, words_.size() - 1)].text;
  }
  bool at(std::string_view text) const { return peek() == text; }
  std::string_view next() { return words_[std::min(now_++, words_.size() - 1)].text; }
  bool accept(std::string_view text) {
    if (!at(text)) return false;
    ++now_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) refuse("expected \"" + std::string(text) + "\"");
  }
  [[noreturn]] void refuse(const std::string& why) {
    throw Fault{CUDA_ERROR_INVALID_PTX,
                format("line %u of the PTX, at \"%.*s\": %s", words_[now_].line,
                       int(std::min<size_t>(peek().size(), 100)), peek().data(), why.c_str())};
  }
  u64 number() {
    bool negative = accept("-");
    if (peek().empty() || !isdigit(u8(peek()[0]))) refuse("expected a number");
    char floating;
    u64 value = parseNumber(next(), floating);
    return negative ? 0 - value : value;
  }

  void parseTop(Source& out) {
    bool external = false;
    for (;; now_++) {
      if (at(".extern")) external = true;
      else if (!at(".visible") && !at(".weak") && !at(".common") && !at(".extern")) break;
    }
    if (accept(".version")) out.version = next();
    else if (accept(".target")) parseTarget(out);
    else if (accept(".address_size")) parseAddressSize();
    else if (at(".entry") || at(".func")) parseFunction(out, external);
    else if (at(".shared") || at(".global") || at(".const"))
      out.variables.push_back(parseVariable(external));
    else if (accept(".file")) skipLine();
    else if (accept(".section")) skipBraces();
    else if (!accept(";")) refuse("not understood");
  }

  void parseTarget(Source& out) {
    out.target = next();
    while (accept(",")) next();
  }

  void parseAddressSize() {
    if (number() != 64) refuse("only 64-bit addresses are supported");
  }

  void skipLine() {
    u32 line = words_[now_ - 1].line;
    while (!at("") && words_[now_].line == line) ++now_;
  }

  void skipBraces() {
    while (!at("") && !at("{")) ++now_;
    while (!at("") && !accept("}")) ++now_;
  }

  Variable parseVariable(bool external) {
    Variable v;
    std::string_view place = next();
    v.place = place == ".shared" ? Variable::Shared
              : place == ".local" ? Variable::Local
              : place == ".param" ? Variable::Param : Variable::Global;
    v.external = external;
    u64 vector = 1;
    Type type = Type::None;
    while (peek().size() > 1 && peek()[0] == '.') {
      std::string_view word = next();
      if (word == ".align") v.align = u32(number());
      else if (word == ".v2") vector = 2;
      else if (word == ".v4") vector = 4;
      else if (word == ".ptr" || word == ".global" || word == ".shared" || word == ".const" ||
               word == ".local") continue;
      else if ((type = typeNamed(word.substr(1))) == Type::None) refuse("unknown type");
    }
    v.name = next();
    u64 unit = vector * u64(bytesOf(type)), count = 1;
    bool open = false;
    while (accept("[")) {
      if (at("]")) open = true;
      else count *= number();
      expect("]");
    }
    v.align = std::max(v.align, u32(unit));
    v.bytes = open ? 0 : unit * count;
    if (accept("=")) parseInitial(v, u64(bytesOf(type)));
    if (v.place != Variable::Param) accept(";");
    return v;
  }

  void parseInitial(Variable& v, u64 unit) {
    do {
      if (accept("{") || accept("}") || accept(",")) continue;
      if (!at("-") && !isdigit(u8(peek()[0]))) refuse("initial value not supported");
      bool negative = accept("-");
      char floating;
      u64 value = parseNumber(next(), floating);
      if (negative) value = 0 - value;
      if (floating == 'd' && unit == 4) value = bitsAs<u32>(float(bitsAs<double>(value)));
      for (u64 k = 0; k < unit; ++k) v.initial.push_back(u8(value >> (8 * k)));
    } while (!at(";") && !at(""));
    v.bytes = std::max<u64>(v.bytes, v.initial.size());
  }

  std::vector<Variable> parseParameters() {
    std::vector<Variable> list;
    if (!accept("(")) return list;
    while (!accept(")")) {
      if (!at(".param")) refuse("only .param arguments are supported");
      list.push_back(parseVariable(false));
      accept(",");
    }
    return list;
  }

  void parseFunction(Source& out, bool external) {
    Function f;
    f.entry = next() == ".entry";
    f.results = parseParameters();
    f.name = next();
    f.parameters = parseParameters();
    while (!at("{") && !at(";") && !at("")) parseTuning(f);
    if (accept(";") || external) return;  // only declared
    parseBody(f);
    out.functions[f.name] = std::move(f);
  }

  void parseTuning(Function& f) {
    std::string_view word = next();
    u64 sizes[3] = {1, 1, 1};
    for (int k = 0; k < 3 && !peek().empty() && isdigit(u8(peek()[0])); ++k) {
      sizes[k] = number();
      if (!accept(",")) break;
    }
    if (word == ".maxntid") f.maxThreads = u32(sizes[0] * sizes[1] * sizes[2]);
    else if (word == ".reqntid") std::copy_n(sizes, 3, f.required);
    else if (word != ".minnctapersm" && word != ".maxnreg" && word != ".noreturn" &&
             word != ".pragma")
      refuse("unknown directive before a function's body");
    if (word == ".pragma") next(), expect(";");
  }

  void parseBody(Function& f) {
    expect("{");
    for (int depth = 1; depth > 0;) {
      if (at("")) refuse("the function does not end");
      Statement s;
      s.line = words_[now_].line;
      const char* start = peek().data();
      if (accept("{")) s.kind = Statement::Open, ++depth;
      else if (accept("}")) s.kind = Statement::Close, --depth;
      else if (peek(1) == ":" && (peek(2) == ".branchtargets")) parseTargets(s);
      else if (peek(1) == ":") s.kind = Statement::Label, s.op = next(), next();
      else if (peek()[0] == '.') {
        if (!parseDirective(s)) continue;
      } else parseInstruction(s);
      const std::string_view last = words_[now_ - 1].text;
      s.text = std::string_view(start, size_t(last.data() + last.size() - start));
      if (depth > 0) f.body.push_back(std::move(s));
    }
  }

  void parseTargets(Statement& s) {
    s.kind = Statement::Targets;
    s.op = next();
    next(), next();
    do s.operands.push_back(parseOperand());
    while (accept(","));
    expect(";");
  }

  bool parseDirective(Statement& s) {
    if (accept(".reg")) {
      s.kind = Statement::Registers;
      s.type = typeNamed(next().substr(1));
      if (s.type == Type::None) refuse("unknown register type");
      do {
        Operand o;
        o.name = next();
        if (accept("<")) o.value = number(), expect(">");
        s.operands.push_back(o);
      } while (accept(","));
      expect(";");
      return true;
    }
    if (at(".local") || at(".shared") || at(".param")) {
      s.kind = Statement::Declare;
      s.variable = parseVariable(false);
      accept(";");
      return true;
    }
    if (accept(".loc")) skipLine();
    else if (accept(".pragma")) next(), expect(";");
    else refuse("unknown directive");
    return false;
  }

  void parseInstruction(Statement& s) {
    s.kind = Statement::Instruction;
    if (accept("@")) s.guardNegated = accept("!"), s.guard = next();
    s.op = next();
    if (!accept(";")) {
      do s.operands.push_back(parseOperand());
      while (accept(","));
      expect(";");
    }
  }

  Operand parseOperand() {
    Operand o;
    if (accept("[")) {
      o.kind = Operand::Address;
      parseAddress(o);
    } else if (accept("{")) {
      o.kind = Operand::Vector;
      do o.parts.push_back(parseOperand());
      while (accept(","));
      expect("}");
    } else if (accept("(")) {
      o.kind = Operand::Group;
      while (!accept(")")) {
        o.parts.push_back(parseOperand());
        accept(",");
      }
    } else if (at("-") || (!peek().empty() && isdigit(u8(peek()[0])))) {
      o.kind = Operand::Number;
      bool negative = accept("-");
      if (peek().empty() || !isdigit(u8(peek()[0]))) refuse("expected a number");
      o.value = parseNumber(next(), o.floating);
      if (negative) o.value = o.floating ? o.value ^ u64(1) << 63 : 0 - o.value;
    } else {
      o.negated = accept("!");
      if (peek().empty() || !isNameChar(peek()[0])) refuse("not understood");
      o.name = next();
      if (accept("|")) o.second = next();
      if (accept("+")) o.value = number();
    }
    return o;
  }

  void parseAddress(Operand& o) {
    if (peek().empty() || isdigit(u8(peek()[0])) || at("-")) o.value = number();
    else o.name = next();
    while (accept("+")) o.value += number();
    if (at("-")) o.value += number();
    expect("]");
  }

  std::string_view source_;
  std::vector<Word> words_;
  size_t now_ = 0;
};

}  // namespace
