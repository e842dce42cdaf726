// The type of a stored value, by DASP_CODING: the number of a Coding in pattern.py.
#pragma once

#include "../codings.cuh"
#include "values.cuh"

#if DASP_CODING == CODING_SINGLE && DASP_KIND == KIND_COMPLEX
using Code = unsigned long long;
#elif DASP_CODING == CODING_SINGLE || DASP_CODING == CODING_REAL_SINGLE
using Code = unsigned;
#elif DASP_CODING == CODING_REAL
using Code = Part;
#elif DASP_CODING == CODING_BYTE
using Code = signed char;
#elif DASP_CODING == CODING_DICTIONARY || DASP_CODING == CODING_EQUAL
using Code = unsigned char;
#elif DASP_CODING == CODING_HALF
using Code = unsigned short;
#else
using Code = Bits;
#endif
