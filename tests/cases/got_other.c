// What got_main.c reaches through the table.
int far_number = 20;
int far_function(int x) { return x * 2; }
