// The type that moves codes of values as their bits. DASP_CODE_BYTES: 1, 2, 4, 8 or 16.
#pragma once

#ifndef DASP_CODE_BYTES
#error "define DASP_CODE_BYTES: bytes of a code, 1, 2, 4, 8 or 16"
#endif

#if DASP_CODE_BYTES == 1
using Code = unsigned char;
#elif DASP_CODE_BYTES == 2
using Code = unsigned short;
#elif DASP_CODE_BYTES == 4
using Code = unsigned;
#elif DASP_CODE_BYTES == 8
using Code = unsigned long long;
#else
using Code = ulonglong2;
#endif
