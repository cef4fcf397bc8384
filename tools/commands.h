/* tools/commands.h - the subcommands of eps, one file each. Each returns its exit status. */
#ifndef TOOLS_COMMANDS_H
#define TOOLS_COMMANDS_H

int command_train(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_report(int argc, char **argv);
int command_export(int argc, char **argv);
int command_status(int argc, char **argv);
int command_mem(int argc, char **argv);
int command_top(int argc, char **argv);
int command_save(int argc, char **argv);
int command_stop(int argc, char **argv);

#endif
