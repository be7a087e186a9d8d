// N vectors at a time behind the interface of one, for long chains of dependent operations: a
// processor's scheduler holds about two hundred waiting instructions (Zen 5), one exponential's
// latency is worth as many, and N chains side by side in the program keep it busy.
#ifndef KDA_CPU_VEC_TIMES_H_
#define KDA_CPU_VEC_TIMES_H_

namespace kda::cpu {

template <class V, int N>
struct Times {
  struct F {
    typename V::F x[N];
  };

  [[gnu::always_inline]] static F Set(float a) {
    F y;
    for (int n = 0; n < N; ++n) y.x[n] = V::Set(a);
    return y;
  }
  [[gnu::always_inline]] static F Zero() { return Set(0.0f); }
  [[gnu::always_inline]] static F Add(const F& a, const F& b) { return Map(V::Add, a, b); }
  [[gnu::always_inline]] static F Sub(const F& a, const F& b) { return Map(V::Sub, a, b); }
  [[gnu::always_inline]] static F Mul(const F& a, const F& b) { return Map(V::Mul, a, b); }
  [[gnu::always_inline]] static F Div(const F& a, const F& b) { return Map(V::Div, a, b); }
  [[gnu::always_inline]] static F Max(const F& a, const F& b) { return Map(V::Max, a, b); }
  [[gnu::always_inline]] static F Min(const F& a, const F& b) { return Map(V::Min, a, b); }
  [[gnu::always_inline]] static F Scale(const F& a, const F& n) { return Map(V::Scale, a, n); }
  [[gnu::always_inline]] static F Fma(const F& a, const F& b, const F& c) {
    return Map(V::Fma, a, b, c);
  }
  [[gnu::always_inline]] static F Fnma(const F& a, const F& b, const F& c) {
    return Map(V::Fnma, a, b, c);
  }
  [[gnu::always_inline]] static F Abs(const F& a) { return Map(V::Abs, a); }
  [[gnu::always_inline]] static F Round(const F& a) { return Map(V::Round, a); }
  [[gnu::always_inline]] static F Pow2(const F& a) { return Map(V::Pow2, a); }
  [[gnu::always_inline]] static F Reciprocal(const F& a) { return Map(V::Reciprocal, a); }
  [[gnu::always_inline]] static F SelectLess(const F& a, const F& b, const F& yes, const F& no) {
    F y;
    for (int n = 0; n < N; ++n) y.x[n] = V::SelectLess(a.x[n], b.x[n], yes.x[n], no.x[n]);
    return y;
  }

 private:
  template <class Function, class... Operands>
  [[gnu::always_inline]] static F Map(Function function, const Operands&... operands) {
    F y;
    for (int n = 0; n < N; ++n) y.x[n] = function(operands.x[n]...);
    return y;
  }
};

// Chains that the registers have room for.
template <class V>
inline constexpr int kChains = V::kLanes == 16 ? 4 : 2;

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_TIMES_H_
