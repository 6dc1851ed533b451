# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_onecopy_global_optspecs
    string join \n color= h/help V/version
end

function __fish_onecopy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_onecopy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_onecopy_using_subcommand
    set -l cmd (__fish_onecopy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c onecopy -n "__fish_onecopy_needs_command" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_needs_command" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_needs_command" -s V -l version -d 'Print version'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "serve" -d 'Serve the files below a folder to a proxy on this host'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "proxy" -d 'HTTP/1.1 reverse proxy in front of `onecopy serve`'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "demo" -d 'Serve real files through daemon and proxy beside the same over kernel sockets, and draw the result'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "bench" -d 'Measure, beside a rival in the same run'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "tune" -d 'Measure the stores of this machine once and save the profile'
complete -c onecopy -n "__fish_onecopy_needs_command" -f -a "doctor" -d 'Say what this machine can do, what each feature will use, and why not better'
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand serve" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand proxy" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand demo" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l report -d 'Write the figures with plots as one self-contained HTML file' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l record -d 'Append the figures to DIR/<date>-<machine>.csv' -r -F
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l rounds -d 'Rounds after the warm-up' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l case -d 'Only cases whose name contains this; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l engine -d 'Only this engine and each case\'s baseline; may be given several times' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l worker -d 'Be a worker of the bench: a role and its parameters' -r
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l quick -d 'Less work, the same shape: for a first look'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l json -d 'One JSON object a line on standard output instead of tables'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -l list -d 'Name the rows and what they do'
complete -c onecopy -n "__fish_onecopy_using_subcommand bench" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand tune" -s h -l help -d 'Print help'
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -l color -d 'When to use colours (NO_COLOR is honoured too)' -r -f -a "auto\t''
always\t''
never\t''"
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -l json -d 'One JSON object instead of the report'
complete -c onecopy -n "__fish_onecopy_using_subcommand doctor" -s h -l help -d 'Print help'
