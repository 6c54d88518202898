// What CUDA C and CuPy's headers give an elementwise kernel, for a host compiler: only what kernels here use, and no
// standard header, so that a kernel compiles in a tenth of a second.
//
// Faces: CuPy's float16 and bfloat16 (implicit from and to float, explicit from other numbers, to_bits, from_bits) and
// thrust::complex; CUDA's arithmetic with a stated rounding.  Roundings are to the nearest, ties to even, and a NaN
// stays one.

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

// ---- arithmetic that is rounded once and never contracted (the compiler is told -ffp-contract=off)

static __forceinline__ float __fadd_rn(float a, float b) { return a + b; }
static __forceinline__ float __fsub_rn(float a, float b) { return a - b; }
static __forceinline__ float __fmul_rn(float a, float b) { return a * b; }
static __forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
static __forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static __forceinline__ double __dadd_rn(double a, double b) { return a + b; }
static __forceinline__ double __dsub_rn(double a, double b) { return a - b; }
static __forceinline__ double __dmul_rn(double a, double b) { return a * b; }
static __forceinline__ double __ddiv_rn(double a, double b) { return a / b; }
static __forceinline__ double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

// ---- bits

template <typename To, typename From>
static __forceinline__ To bits_as_(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
static __forceinline__ unsigned int __float_as_uint(float x) { return bits_as_<unsigned int>(x); }
static __forceinline__ int __float_as_int(float x) { return bits_as_<int>(x); }
static __forceinline__ float __uint_as_float(unsigned int x) { return bits_as_<float>(x); }
static __forceinline__ float __int_as_float(int x) { return bits_as_<float>(x); }
static __forceinline__ long long __double_as_longlong(double x) { return bits_as_<long long>(x); }
static __forceinline__ double __longlong_as_double(long long x) { return bits_as_<double>(x); }

// ---- functions

static __forceinline__ bool isnan(float x) { return x != x; }
static __forceinline__ bool isnan(double x) { return x != x; }
static __forceinline__ bool isinf(float x) { return __builtin_isinf(x); }
static __forceinline__ bool isinf(double x) { return __builtin_isinf(x); }
static __forceinline__ bool isfinite(float x) { return __builtin_isfinite(x); }
static __forceinline__ bool isfinite(double x) { return __builtin_isfinite(x); }
static __forceinline__ bool signbit(float x) { return __builtin_signbit(x); }
static __forceinline__ bool signbit(double x) { return __builtin_signbit(x); }
static __forceinline__ float fminf(float a, float b) { return __builtin_fminf(a, b); }
static __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static __forceinline__ float fmin(float a, float b) { return __builtin_fminf(a, b); }
static __forceinline__ float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
static __forceinline__ double fmin(double a, double b) { return __builtin_fmin(a, b); }
static __forceinline__ double fmax(double a, double b) { return __builtin_fmax(a, b); }
static __forceinline__ float min(float a, float b) { return __builtin_fminf(a, b); }
static __forceinline__ float max(float a, float b) { return __builtin_fmaxf(a, b); }
static __forceinline__ double min(double a, double b) { return __builtin_fmin(a, b); }
static __forceinline__ double max(double a, double b) { return __builtin_fmax(a, b); }
#define INTEGER_EXTREMES(T)                                                \
  static __forceinline__ T min(T a, T b) { return b < a ? b : a; }         \
  static __forceinline__ T max(T a, T b) { return a < b ? b : a; }
INTEGER_EXTREMES(int)
INTEGER_EXTREMES(unsigned int)
INTEGER_EXTREMES(long)
INTEGER_EXTREMES(unsigned long)
INTEGER_EXTREMES(long long)
INTEGER_EXTREMES(unsigned long long)
#undef INTEGER_EXTREMES

// ---- 16-bit floats

static __forceinline__ float half_value_(unsigned short h) {
  unsigned int sign = (unsigned int)(h & 0x8000u) << 16;
  unsigned int exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0x1f) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent) return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
  float value = (float)fraction * 0x1p-24f;
  return sign ? -value : value;
}

static __forceinline__ unsigned short half_bits_(float x) {
  unsigned int bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u;
  unsigned int size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {  // a NaN keeps what fits of its payload, and stays a NaN
    unsigned int payload = (size >> 13) & 0x3ffu;
    return (unsigned short)(sign | 0x7c00u | (payload ? payload : 1u));
  }
  if (size >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);  // from 65520: infinity
  if (size >= 0x38800000u) {                                          // from 2**-14: a normal number
    unsigned int rounded = size + 0xfffu + ((size >> 13) & 1u);
    return (unsigned short)(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Below, steps of 2**-24: adding 0.5 leaves those as the last bits of a float, rounded as floats are.
  float shifted = __uint_as_float(size) + 0.5f;
  return (unsigned short)(sign | (__float_as_uint(shifted) - 0x3f000000u));
}

static __forceinline__ float brain_value_(unsigned short b) { return __uint_as_float((unsigned int)b << 16); }

static __forceinline__ unsigned short brain_bits_(float x) {
  unsigned int bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (unsigned short)((bits >> 16) & 0x8000u) | 0x7fc0u;
  return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#define SIXTEEN_BIT_FLOAT(NAME, VALUE, BITS)                                             \
  class NAME {                                                                           \
    unsigned short data_;                                                                \
                                                                                         \
   public:                                                                               \
    NAME() {}                                                                            \
    NAME(float v) : data_(BITS(v)) {}                                                    \
    explicit NAME(bool v) : data_(BITS((float)v)) {}                                     \
    explicit NAME(double v) : data_(BITS((float)v)) {}                                   \
    explicit NAME(int v) : data_(BITS((float)v)) {}                                      \
    explicit NAME(unsigned int v) : data_(BITS((float)v)) {}                             \
    explicit NAME(long long v) : data_(BITS((float)v)) {}                                \
    explicit NAME(unsigned long long v) : data_(BITS((float)v)) {}                       \
    operator float() const { return VALUE(data_); }                                      \
    NAME &operator=(const NAME &) = default;                                             \
    NAME(const NAME &) = default;                                                        \
    template <typename T>                                                                \
    NAME &operator=(const T &rhs) {                                                      \
      return *this = static_cast<NAME>(rhs);                                             \
    }                                                                                    \
    unsigned short to_bits() const { return data_; }                                     \
    static NAME from_bits(unsigned short v) {                                            \
      NAME x;                                                                            \
      x.data_ = v;                                                                       \
      return x;                                                                          \
    }                                                                                    \
    int iszero() const { return (data_ & 0x7fffu) == 0; }                                \
    int isnan() const { float x = *this; return x != x; }                                \
    int isinf() const { float x = *this; return __builtin_isinf(x); }                    \
    int isfinite() const { float x = *this; return __builtin_isfinite(x); }              \
    int signbit() const { return (data_ & 0x8000u) != 0; }                               \
  };                                                                                     \
  static __forceinline__ int isnan(NAME x) { return x.isnan(); }                         \
  static __forceinline__ int isinf(NAME x) { return x.isinf(); }                         \
  static __forceinline__ int isfinite(NAME x) { return x.isfinite(); }                   \
  static __forceinline__ int signbit(NAME x) { return x.signbit(); }
SIXTEEN_BIT_FLOAT(float16, half_value_, half_bits_)
SIXTEEN_BIT_FLOAT(bfloat16, brain_value_, brain_bits_)
#undef SIXTEEN_BIT_FLOAT

// ---- complex numbers

namespace thrust {

template <typename T>
struct complex {
  typedef T value_type;
  complex() = default;
  complex(const T &re) : re_(re), im_(T(0)) {}
  complex(const T &re, const T &im) : re_(re), im_(im) {}
  template <typename X>
  complex(const complex<X> &z) : re_(T(z.real())), im_(T(z.imag())) {}
  T real() const { return re_; }
  T imag() const { return im_; }
  void real(T re) { re_ = re; }
  void imag(T im) { im_ = im; }
  complex &operator+=(const complex &z) { return *this = *this + z; }
  complex &operator-=(const complex &z) { return *this = *this - z; }
  complex &operator*=(const complex &z) { return *this = *this * z; }
  complex operator-() const { return complex(-re_, -im_); }
  friend complex operator+(const complex &a, const complex &b) { return complex(a.re_ + b.re_, a.im_ + b.im_); }
  friend complex operator-(const complex &a, const complex &b) { return complex(a.re_ - b.re_, a.im_ - b.im_); }
  friend complex operator*(const complex &a, const complex &b) {
    return complex(a.re_ * b.re_ - a.im_ * b.im_, a.re_ * b.im_ + a.im_ * b.re_);
  }
  friend complex operator/(const complex &a, const T &b) { return complex(a.re_ / b, a.im_ / b); }
  friend bool operator==(const complex &a, const complex &b) { return a.re_ == b.re_ && a.im_ == b.im_; }
  friend bool operator!=(const complex &a, const complex &b) { return !(a == b); }

 private:
  T re_, im_;
};

}  // namespace thrust
using thrust::complex;

template <typename T>
static __forceinline__ bool isnan(const complex<T> &z) {
  return isnan(z.real()) || isnan(z.imag());
}
