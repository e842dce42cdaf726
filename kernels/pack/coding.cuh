// The type of a stored value, by DASP_CODING: the number of a Coding in pattern.py.
#pragma once

#include "values.cuh"

#define CODING_PLAIN 0
#define CODING_SINGLE 1
#define CODING_BYTE 2
#define CODING_DICTIONARY 3
#define CODING_EQUAL 4
#define CODING_HALF 5
#define CODING_REAL 6
#define CODING_REAL_SINGLE 7

#ifndef DASP_CODING
#error "define DASP_CODING: how values are stored, the number of a Coding in pattern.py"
#endif

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
