// Elementary functions on a vector of fp32, written once over the vector layer.
//
// exp is 2^n (1 + t q(t)) with n = round(x log2 e), r = x - n ln 2 (in two parts, so that nothing
// is lost however large x is), t = r log2 e in [-1/2, 1/2], q the degree-5 Chebyshev fit of
// (2^t - 1) / t: relative error at most 5e-9 before rounding, 2 ulp after (tests/stages checks
// every binade). NaN stays NaN; results below 2^-126 become 0.
#ifndef KDA_CPU_VEC_MATH_H_
#define KDA_CPU_VEC_MATH_H_

namespace kda::cpu {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2Hi = 0.693145751953125f;  // 14 bits: n * kLn2Hi is exact
inline constexpr float kLn2Lo = 1.42860682030941723e-6f;

// 2^r - 1 for |r| <= 1/2, relatively exact near 0.
template <class V>
[[gnu::always_inline]] inline typename V::F Exp2m1Reduced(typename V::F r) {
  typename V::F q = V::Set(1.5453162965e-4f);
  q = V::Fma(q, r, V::Set(1.33908633876e-3f));
  q = V::Fma(q, r, V::Set(9.61808255724e-3f));
  q = V::Fma(q, r, V::Set(5.55035711418e-2f));
  q = V::Fma(q, r, V::Set(2.40226507606e-1f));
  q = V::Fma(q, r, V::Set(6.93147188026e-1f));
  return V::Mul(q, r);
}

// e^(x - lost), x finite and at most 88, |lost| a rounding error of x.
template <class V>
[[gnu::always_inline]] inline typename V::F Exp(typename V::F x, typename V::F lost) {
  const typename V::F n = V::Round(V::Mul(x, V::Set(kLog2E)));
  typename V::F r = V::Fnma(n, V::Set(kLn2Hi), x);
  r = V::Sub(V::Fnma(n, V::Set(kLn2Lo), r), lost);
  // The same two roundings as in 1 + ExpSplit's lo.
  const typename V::F p = Exp2m1Reduced<V>(V::Mul(r, V::Set(kLog2E)));
  return V::Scale(V::Add(V::Set(1.0f), p), n);
}

template <class V>
[[gnu::always_inline]] inline typename V::F Exp(typename V::F x) {
  return Exp<V>(x, V::Zero());
}

// e^x for x <= 0, given as `exp`, as hi + lo, hi in {0, 1}: lo is e^x - 1 near x = 0 (hi 1), else
// e^x itself (hi 0), relatively exact either way, so that S hi + S lo loses nothing to the rounding
// of e^x: a gate of -8e-5 per token over 4096 tokens would otherwise be off by 1e-4.
template <class V>
[[gnu::always_inline]] inline void ExpSplit(typename V::F x, typename V::F exp, typename V::F* hi,
                                            typename V::F* lo) {
  const typename V::F near = V::Set(-0.34f);
  const typename V::F minus_one = Exp2m1Reduced<V>(V::Mul(V::Max(near, x), V::Set(kLog2E)));
  *lo = V::SelectLess(x, near, exp, minus_one);
  *hi = V::SelectLess(x, near, V::Zero(), V::Set(1.0f));
}

// 1 / (1 + e^minus_x)
template <class V>
[[gnu::always_inline]] inline typename V::F SigmoidOfMinus(typename V::F minus_x) {
  const typename V::F e = Exp<V>(V::Max(V::Set(-88.0f), V::Min(V::Set(88.0f), minus_x)));
  return V::Reciprocal(V::Add(V::Set(1.0f), e));
}

template <class V>
[[gnu::always_inline]] inline typename V::F Sigmoid(typename V::F x) {
  return SigmoidOfMinus<V>(V::Sub(V::Zero(), x));
}

// log(1 + t), t in [0, 1]: 2 atanh(t / (2 + t)).
template <class V>
[[gnu::always_inline]] inline typename V::F Log1p(typename V::F t) {
  const typename V::F s = V::Div(t, V::Add(t, V::Set(2.0f)));
  const typename V::F z = V::Mul(s, s);
  typename V::F p = V::Set(1.40788891816e-1f);
  p = V::Fma(p, z, V::Set(1.39825788726e-1f));
  p = V::Fma(p, z, V::Set(2.00122976154e-1f));
  p = V::Fma(p, z, V::Set(3.33331608207e-1f));
  p = V::Fma(p, z, V::Set(1.0f));
  return V::Mul(V::Add(s, s), p);
}

// softplus(x) * 2^exponent (exponent whole): the power of two meets the exponent of e^x before
// either can overflow or underflow.
template <class V>
[[gnu::always_inline]] inline typename V::F SoftplusTimesPow2(typename V::F x,
                                                              typename V::F exponent) {
  using F = typename V::F;
  const F minus_abs = V::Max(V::Set(-1e4f), V::Sub(V::Zero(), V::Abs(x)));
  const F n = V::Round(V::Mul(minus_abs, V::Set(kLog2E)));
  F r = V::Fnma(n, V::Set(kLn2Hi), minus_abs);
  r = V::Fnma(n, V::Set(kLn2Lo), r);
  const F p = V::Add(V::Set(1.0f), Exp2m1Reduced<V>(V::Mul(r, V::Set(kLog2E))));  // e^-|x| = p 2^n
  const F t = V::Mul(p, V::Pow2(V::Max(V::Set(-127.0f), n)));
  const F plain = V::Add(V::Max(V::Zero(), x), Log1p<V>(t));
  const F half_t = V::Mul(t, V::Set(0.5f));
  const F tail = V::Fnma(p, half_t, p);  // log(1 + t) = t (1 - t / 2), x <= -16
  const F far = V::Set(-16.0f);
  const F y = V::SelectLess(x, far, tail, plain);
  F e = V::Add(exponent, V::SelectLess(x, far, n, V::Zero()));
  e = V::Max(V::Set(-250.0f), V::Min(V::Set(250.0f), e));
  const F half_e = V::Round(V::Mul(e, V::Set(0.5f)));
  return V::Mul(V::Mul(y, V::Pow2(half_e)), V::Pow2(V::Sub(e, half_e)));
}

}  // namespace kda::cpu

#endif  // KDA_CPU_VEC_MATH_H_
