// Options: which backend, instruction set, solver and switches run, and why.
#include <sched.h>

#include <algorithm>
#include <string>

#include "core/cpu_features.h"
#include "core/isa.h"
#include "core/limits.h"
#include "core/switches.h"
#include "core/validate.h"

namespace kda::core {
namespace {

// "auto (0), cpu (1), reference (2)"; `last`: the largest value that has a name.
std::string NamedValues(const char* (*name_of)(int32_t), int32_t last) {
  std::string text;
  for (int32_t value = 0; value <= last; ++value) {
    if (name_of(value) == nullptr) continue;
    text += (text.empty() ? "" : ", ") + std::string(name_of(value));
    text += " (" + std::to_string(value) + ")";
  }
  return text;
}

int32_t LastIsa() {
  int32_t last = KDA_ISA_AUTO;
  for (const Isa& isa : Isas()) last = std::max(last, isa.info.isa);
  return last;
}

kda_status CheckEnums(const kda_options& in, kda_error* error) {
  const struct {
    const char* name;
    int32_t value;
    const char* (*name_of)(int32_t);
    int32_t last;
  } enums[] = {{"backend", in.backend, kda_backend_name, KDA_BACKEND_REFERENCE},
               {"isa", in.isa, kda_isa_name, LastIsa()},
               {"solver", in.solver, kda_solver_name, KDA_SOLVER_NEUMANN64}};
  for (const auto& e : enums) {
    if (e.name_of(e.value) == nullptr) {
      return Fail(error, KDA_ERROR_ENUM, e.name, "value is %d, must be one of %s", e.value,
                  NamedValues(e.name_of, e.last).c_str());
    }
  }
  if ((in.switches_off & ~KDA_SWITCHES_ALL) != 0) {
    return Fail(error, KDA_ERROR_ENUM, "switches_off",
                "value is 0x%x, of which 0x%x is unknown; known switches: 0x%x", in.switches_off,
                in.switches_off & ~KDA_SWITCHES_ALL, KDA_SWITCHES_ALL);
  }
  if ((in.flags & ~KDA_OPTION_CALLER_WORKSPACE) != 0) {
    return Fail(error, KDA_ERROR_ENUM, "options.flags",
                "value is 0x%x, of which 0x%x is unknown; known flags: 0x%x", in.flags,
                in.flags & ~KDA_OPTION_CALLER_WORKSPACE, KDA_OPTION_CALLER_WORKSPACE);
  }
  return KDA_OK;
}

int32_t Processors() {
  cpu_set_t set[8];  // one holds 1024 processors; the call fails where the machine has more
  if (sched_getaffinity(0, sizeof set, set) != 0) return 1;
  const auto max = static_cast<int32_t>(LimitOf(Limit::kThreads).max);
  return std::clamp(static_cast<int32_t>(CPU_COUNT_S(sizeof set, set)), 1, max);
}

kda_status ChooseIsa(const kda_options& in, const IsaChoice& here, Execution* execution,
                     kda_error* error) {
  const bool reference = execution->backend == KDA_BACKEND_REFERENCE;
  const IsaCap cap = ReadIsaCap();
  const Isa& first = here.table.First();
  if (in.isa == KDA_ISA_AUTO) {
    if (!cap.known) {
      const IsaChoice all = {here.table, ~uint64_t{0}, nullptr};
      return Fail(error, KDA_ERROR_OPTION, "KDA_MAX_ISA",
                  "the environment variable is \"%.64s\", must be one of %s", cap.text,
                  all.Names().c_str());
    }
    const Isa& best = reference ? first : here.Best();
    execution->isa = static_cast<kda_isa>(best.info.isa);
    return KDA_OK;
  }
  const Isa& isa = *here.table.Find(in.isa);
  if (!here.Available(isa)) {
    const bool capped = here.MachineHas(isa);
    return Fail(error, KDA_ERROR_UNAVAILABLE, "isa",
                "%s is forced, but %s%.64s; available here: %s", isa.info.name,
                capped ? "KDA_MAX_ISA is " : "this machine does not have it",
                capped ? cap.text : "", here.Names().c_str());
  }
  if (reference && &isa != &first) {
    return Fail(error, KDA_ERROR_OPTION, "isa",
                "%s is forced, but the reference backend has only %s", isa.info.name,
                first.info.name);
  }
  execution->isa = static_cast<kda_isa>(isa.info.isa);
  return KDA_OK;
}

const char* GateName(kda_gate gate) {
  constexpr const char* kNames[] = {"log", "bounded", "softplus"};
  return kNames[gate];
}

// Token by token there is nothing to solve and nothing to switch.
kda_status ChooseStrategy(const kda_options& in, kda_plan* plan, std::string* reasons,
                          kda_error* error) {
  Execution* const e = &plan->execution;
  const uint32_t asked = KDA_SWITCHES_ALL & ~in.switches_off;
  e->solver = static_cast<kda_solver>(in.solver);
  const bool reference = e->backend == KDA_BACKEND_REFERENCE;
  if (reference || plan->problem.mode == KDA_DECODE) {
    const char* const what = reference ? "the reference backend" : "decode";
    if (e->solver != KDA_SOLVER_AUTO) {
      return Fail(error, KDA_ERROR_OPTION, "solver",
                  "%s is forced, but %s goes token by token and has none; only auto is taken",
                  kda_solver_name(e->solver), what);
    }
    e->switches = 0;
    e->switches_fallback = asked;
    if (asked != 0) *reasons += std::string("; ") + SwitchNames(asked) + " off: token by token";
    return KDA_OK;
  }
  e->switches = ResolveSwitches(asked, reasons);
  e->switches_fallback = asked & ~e->switches;
  if (e->solver == KDA_SOLVER_AUTO) {
    e->solver =
        (e->switches & KDA_SWITCH_SAFE_GATE) != 0 ? KDA_SOLVER_BLOCK : KDA_SOLVER_SUBSTITUTION;
  }
  return KDA_OK;
}

}  // namespace

std::string Describe(const kda_plan& plan) {
  const Execution& e = plan.execution;
  std::string text = kda_backend_name(e.backend);
  text += e.backend == KDA_BACKEND_REFERENCE ? " fp64" : std::string(" ") + kda_isa_name(e.isa);
  text += plan.problem.mode == KDA_DECODE ? ", decode, " : ", prefill, ";
  text += GateName(plan.problem.gate);
  text += " gate, switches " + SwitchNames(e.switches);
  if (e.solver != KDA_SOLVER_AUTO) text += std::string(", solver ") + kda_solver_name(e.solver);
  text += ", " + std::to_string(e.threads) + (e.threads == 1 ? " thread" : " threads");
  if (e.executor.run != nullptr) text += " of the caller's executor";
  return text;
}

kda_status CheckOptions(const kda_options& in, const IsaChoice& here, kda_plan* plan,
                        std::string* reasons, kda_error* error) {
  Execution* const e = &plan->execution;
  kda_status status = CheckEnums(in, error);
  if (status != KDA_OK) return status;
  e->backend =
      in.backend == KDA_BACKEND_AUTO ? KDA_BACKEND_CPU : static_cast<kda_backend>(in.backend);
  status = CheckLimit(Limit::kThreads, int64_t{in.threads}, "threads", KDA_ERROR_OPTION, error);
  if (status == KDA_OK) status = ChooseIsa(in, here, e, error);
  if (status == KDA_OK) status = ChooseStrategy(in, plan, reasons, error);
  if (status != KDA_OK) return status;
  e->threads = in.threads == 0 ? Processors() : in.threads;
  e->executor = in.executor;
  return KDA_OK;
}

kda_status ChooseProducts(const kda_options& in, const IsaChoice& here, kda_plan* plan,
                          std::string* reasons, kda_error* error) {
  Execution* const e = &plan->execution;
  const Backend& backend = BackendOf(*plan);
  const Isa& isa = *here.table.Find(e->isa);
  plan->bf16_products = backend.multiplies_bf16(*plan);
  // Only bf16 products use tiles.
  if (!plan->bf16_products || (isa.needs & kAmxTile) == 0 || here.ask_for_tiles()) return KDA_OK;
  IsaChoice others = here;
  others.features &= ~kAmxTile;
  constexpr char kWhy[] = "the system refuses this process the tile registers";
  if (in.isa != KDA_ISA_AUTO) {
    return Fail(error, KDA_ERROR_UNAVAILABLE, "isa", "%s is forced, but %s; available here: %s",
                isa.info.name, kWhy, others.Names().c_str());
  }
  e->isa = static_cast<kda_isa>(others.Best().info.isa);
  plan->bf16_products = backend.multiplies_bf16(*plan);
  *reasons += std::string("; ") + isa.info.name + " off: " + kWhy;
  return KDA_OK;
}

}  // namespace kda::core
