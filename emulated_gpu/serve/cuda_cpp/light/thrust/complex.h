// Of Thrust's header, a sixth of all, what c10::complex names. Who uses one of Thrust's headers gets two of `complex`.
#pragma once
namespace thrust {
template <class T> struct complex;
template <class T> T abs(const complex<T> &) = delete;
template <class T> complex<T> polar(const T &, const T & = T()) = delete;
}  // namespace thrust
