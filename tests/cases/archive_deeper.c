// A member that only another member needs.
int deeper(int x) { return x * 10; }
