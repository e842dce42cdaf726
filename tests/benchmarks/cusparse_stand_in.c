/* A stand-in for cuSPARSE on host memory, written from the prototypes of cusparse.h of 12.8.1 to 12.9.4. It
   refuses (status 3, invalid value) whatever arrives in the wrong place, multiplies for real, and counts the
   objects that are alive. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
typedef struct {
  int64_t rows, cols, nnz, slots, height;
  int32_t *offsets, *columns;
  void *values;
  int sell, type;
} Matrix;
typedef struct { int64_t size; void *values; int type; } Vector;
typedef struct { int op; const Matrix *A; int algorithm; void *buffer; int type; } Plan;
int version = 12801, alive = 0;
#define OK return 0
#define NEED(condition) if (!(condition)) return 3
int cusparseCreate(void **handle) { *handle = malloc(1); OK; }
int cusparseDestroy(void *handle) { free(handle); OK; }
int cusparseGetVersion(void *handle, int *number) { NEED(handle); *number = version; OK; }
int cusparseSetStream(void *handle, void *stream) { NEED(handle && !stream); OK; }
const char *cusparseGetErrorString(int status) { return status == 3 ? "invalid value" : "?"; }
int cusparseCreateCsr(void **made, int64_t rows, int64_t cols, int64_t nnz, void *offsets, void *columns, void *values,
                      int offset_type, int column_type, int base, int type) {
  NEED(offset_type == 2 && column_type == 2 && base == 0);
  Matrix *m = calloc(1, sizeof *m);
  *m = (Matrix){rows, cols, nnz, nnz, 0, offsets, columns, values, 0, type};
  *made = m; alive++; OK;
}
int cusparseCreateSlicedEll(void **made, int64_t rows, int64_t cols, int64_t nnz, int64_t slots, int64_t height,
                            void *offsets, void *columns, void *values, int offset_type, int column_type, int base,
                            int type) {
  NEED(offset_type == 2 && column_type == 2 && base == 0 && height > 0);
  Matrix *m = calloc(1, sizeof *m);
  *m = (Matrix){rows, cols, nnz, slots, height, offsets, columns, values, 1, type};
  NEED(m->offsets[(rows + height - 1) / height] == slots);
  *made = m; alive++; OK;
}
int cusparseDestroySpMat(void *matrix) { free(matrix); alive--; OK; }
int cusparseCreateDnVec(void **made, int64_t size, void *values, int type) {
  Vector *v = calloc(1, sizeof *v);
  *v = (Vector){size, values, type};
  *made = v; alive++; OK;
}
int cusparseDestroyDnVec(void *vector) { free(vector); alive--; OK; }
static double at(const void *values, int type, int64_t i) {
  return type == 1 ? ((const double *)values)[i] : ((const float *)values)[i];
}
static int multiply(const void *alpha, const Matrix *A, const Vector *x, const void *beta, const Vector *y, Vector *z) {
  NEED(A->cols == x->size && A->rows == y->size && A->rows == z->size);
  NEED(A->type == x->type && A->type == y->type && A->type == z->type);
  int64_t seen = 0;
  for (int64_t i = 0; i < A->rows; i++) {
    double sum = 0;
    int64_t step = A->sell ? A->height : 1;
    int64_t first = A->sell ? A->offsets[i / A->height] + i % A->height : A->offsets[i];
    int64_t last = A->sell ? A->offsets[i / A->height + 1] : A->offsets[i + 1];
    for (int64_t k = first; k < last; k += step)
      if (A->columns[k] >= 0) { sum += at(A->values, A->type, k) * at(x->values, x->type, A->columns[k]); seen++; }
    double result = at(alpha, A->type, 0) * sum + at(beta, A->type, 0) * at(y->values, y->type, i);
    if (A->type == 1) ((double *)z->values)[i] = result; else ((float *)z->values)[i] = (float)result;
  }
  NEED(seen == A->nnz);
  OK;
}
#define SPMV void *handle, int op, const void *alpha, const Matrix *A, const Vector *x, const void *beta, Vector *y, \
             int type, int algorithm
int cusparseSpMV_bufferSize(SPMV, size_t *size) {
  NEED(handle && op == 0 && type == A->type && alpha && beta && x && y);
  NEED(A->sell ? algorithm == 5 : algorithm == 2 || algorithm == 3);
  *size = 64; OK;
}
int cusparseSpMV_preprocess(SPMV, void *buffer) {
  NEED(handle && op == 0 && type == A->type && algorithm && alpha && beta && x && y && buffer); OK;
}
int cusparseSpMV(SPMV, void *buffer) {
  NEED(handle && op == 0 && type == A->type && algorithm && buffer);
  return multiply(alpha, A, x, beta, y, y);
}
typedef struct { int64_t rows, cols, stride; void *values; int type, order; } Dense;
int cusparseCreateDnMat(void **made, int64_t rows, int64_t cols, int64_t stride, void *values, int type, int order) {
  NEED((order == 1 && stride >= rows) || (order == 2 && stride >= cols));
  Dense *d = calloc(1, sizeof *d);
  *d = (Dense){rows, cols, stride, values, type, order};
  *made = d; alive++; OK;
}
int cusparseDestroyDnMat(void *matrix) { free(matrix); alive--; OK; }
static int64_t in(const Dense *d, int64_t i, int64_t j) { return d->order == 1 ? j * d->stride + i : i * d->stride + j; }
#define SPMM void *handle, int op_a, int op_b, const void *alpha, const Matrix *A, const Dense *B, const void *beta, \
             Dense *C, int type, int algorithm
int cusparseSpMM_bufferSize(SPMM, size_t *size) {
  NEED(handle && op_a == 0 && op_b == 0 && type == A->type && alpha && beta);
  NEED(algorithm == 4 || algorithm == 6 || algorithm == 12);
  NEED(A->cols == B->rows && A->rows == C->rows && B->cols == C->cols && B->type == type && C->type == type);
  *size = 64; OK;
}
int cusparseSpMM_preprocess(SPMM, void *buffer) { NEED(handle && !op_a && !op_b && alpha && A && B && beta && C && type >= 0 && algorithm && buffer); OK; }
int cusparseSpMM(SPMM, void *buffer) {
  NEED(handle && op_a == 0 && op_b == 0 && type == A->type && algorithm && buffer);
  for (int64_t i = 0; i < A->rows; i++)
    for (int64_t j = 0; j < C->cols; j++) {
      double sum = 0;
      for (int64_t k = A->offsets[i]; k < A->offsets[i + 1]; k++)
        sum += at(A->values, type, k) * at(B->values, type, in(B, A->columns[k], j));
      double result = at(alpha, type, 0) * sum + at(beta, type, 0) * at(C->values, type, in(C, i, j));
      if (type == 1) ((double *)C->values)[in(C, i, j)] = result; else ((float *)C->values)[in(C, i, j)] = (float)result;
    }
  OK;
}
#define SPMVOP int op, const Matrix *A, const Vector *x, Vector *y, Vector *z, int type, int algorithm
int cusparseSpMVOp_bufferSize(void *handle, SPMVOP, size_t *size) {
  NEED(handle && op == 0 && type == A->type && (algorithm == 1 || algorithm == 2) && x && y && z); *size = 32; OK;
}
int cusparseSpMVOp_createDescr(void *handle, void **made, SPMVOP, void *buffer) {
  NEED(handle && op == 0 && type == A->type && buffer && x && y && z);
  Plan *p = calloc(1, sizeof *p);
  *p = (Plan){op, A, algorithm, buffer, type};
  *made = p; alive++; OK;
}
int cusparseSpMVOp_destroyDescr(void *made) { free(made); alive--; OK; }
int cusparseSpMVOp_createPlan(void *handle, Plan *description, void **plan, const void *code, size_t size) {
  NEED(handle && description && !code && !size);
  Plan *p = calloc(1, sizeof *p);
  *p = *description; *plan = p; alive++; OK;
}
int cusparseSpMVOp_destroyPlan(void *plan) { free(plan); alive--; OK; }
int cusparseSpMVOp(void *handle, Plan *plan, const void *alpha, const void *beta, const Vector *x, const Vector *y,
                   Vector *z) {
  NEED(handle && plan);
  return multiply(alpha, plan->A, x, beta, y, z);
}
